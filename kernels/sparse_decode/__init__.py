"""Sparse attention of single query tokens, split over the keys."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import check_attention, check_counters
from ..types import PagedKV, RopeTables, SparsePlan


def sparse_decode(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    *,
    counters: torch.Tensor | None = None,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend the last N tokens, each with a plan of its own, to their keys.

    The same function as `sparse_prefill` with blocks of one query, arranged for few tokens:
    keys are divided among the multiprocessors and the parts merged. No launch depends on a
    value on the device, so a CUDA graph holds for every length up to plan.local_tokens.

    Args:
        q: [N, num_heads, head_dim], un-rotated; its token n stands at seqlen_k - N + n.
        kv: pages that hold all seqlen_k tokens, the queries' own included.
        plan: block_size_q must be 1.
        rope: tables with at least plan.local_tokens rows, whose angles grow in proportion to
            the position: keys and query are turned by differences of positions.
        seqlen_k: int32 [1], tokens in the cache.
        softmax_scale: factor of the logits.
        counters: int32 [N * num_kv_heads or more], all zero, and left so: where the programs
            that share a head's keys meet. None makes one, a launch more; calls that may run at
            the same time must not share one.
        backend: a name of BACKENDS, or "auto".

    Returns:
        out [N, num_heads, head_dim] in q's dtype and lse fp32 [N, num_heads].

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    check_attention(q, kv, plan, rope, seqlen_k, backend, counters)
    if plan.block_size_q != 1:
        raise ValueError(f"plan.block_size_q: expected 1 to decode, received {plan.block_size_q}")
    if counters is not None:
        check_counters(counters, q.shape[0] * kv.k_pages.shape[1])
    run = implementation("sparse_decode", backend, q.device)
    return run(q, kv, plan, rope, seqlen_k, softmax_scale, counters)
