"""Sparse attention of blocks of queries: sinks, selected blocks and window in one softmax."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import check_attention
from ..types import PagedKV, RopeTables, SparsePlan


def sparse_prefill(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    *,
    return_lse: bool = True,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend the last N tokens of a sequence to the keys their plan names.

    Keys and queries are rotated here, at packed positions: sink token i at i, the r-th selected
    token at sink_tokens + r, window token j at base + j - window_start, the query at position i
    at base + i - window_start, where base is sinks + selected tokens of the block and KV head,
    or 0 for a dense block (window_start 0).

    Args:
        q: [N, num_heads, head_dim], un-rotated; its token n stands at seqlen_k - N + n.
        kv: pages that hold all seqlen_k tokens, the queries' own included.
        plan: per query block and KV head.
        rope: tables with at least plan.local_tokens rows.
        seqlen_k: int32 [1], tokens in the cache.
        softmax_scale: factor of the logits.
        return_lse: without, lse is None: on a CPU it costs a tenth of the call.
        backend: a name of BACKENDS, or "auto".

    Returns:
        out [N, num_heads, head_dim] in q's dtype and lse fp32 [N, num_heads], the natural
        logarithm of the softmax denominator.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.

    Source: InfiniteHiP (2502.08910, sections 3.2 and 3.4). There the query keeps its true
    position and needs tables as long as the context; only differences count, so we move the
    frame to the sinks. Their list may overlap the window; ours never does.
    """
    check_attention(q, kv, plan, rope, seqlen_k, backend)
    run = implementation("sparse_prefill", backend, q.device)
    return run(q, kv, plan, rope, seqlen_k, softmax_scale, return_lse)
