"""One pass over every key for a handful of query tokens: where does each head look?"""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import (
    check_distance,
    check_pages,
    check_queries,
    check_rope,
    check_seqlen,
    require_same_device,
)
from ..types import PagedKV, RopeTables

MAX_TOKENS = 64


def vote(
    q: torch.Tensor,
    kv: PagedKV,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    distance: int,
    softmax_scale: float,
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score every page of every head exactly for a few query tokens.

    Args:
        q: [N, num_heads, head_dim], 1 to 64 tokens, un-rotated.
        kv: pages of keys; values are not read.
        seqlen_k: int32 [1], the number of keys that take part, from the first on.
        rope: tables with more than `distance` rows.
        distance: position of the queries while the keys stand at 0.
        softmax_scale: factor of the logits, positive.
        backend: a name of BACKENDS, or "auto".

    Returns:
        page_max fp32 [N, num_heads, num_pages], the maximum of q . k * softmax_scale over each
        page's keys (-inf for pages without any), and lse fp32 [N, num_heads], the log-sum-exp
        of page_max over pages; page_max - lse is the log-softmax over pages.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    check_pages(kv, q, backend)
    check_queries(q, kv.k_pages.shape[1])
    if q.shape[0] > MAX_TOKENS:
        raise ValueError(f"q: expected 1 to {MAX_TOKENS} tokens, received {q.shape[0]}")
    check_rope(rope, q.shape[2])
    check_distance(distance, rope)
    check_seqlen(seqlen_k)
    if not softmax_scale > 0:
        raise ValueError(f"softmax_scale: expected a positive number, received {softmax_scale!r}")
    require_same_device(
        q=q, k_pages=kv.k_pages, page_table=kv.page_table, seqlen_k=seqlen_k, cos=rope.cos
    )
    run = implementation("vote", backend, q.device)
    return run(q, kv, seqlen_k, rope, distance, softmax_scale)
