"""Decoding on a CPU: prefill with blocks of one query, equal neighbours joined."""

from __future__ import annotations

import torch

from ..sparse_prefill.cpu_impl import sparse_prefill
from ..types import PagedKV, RopeTables, SparsePlan


def sparse_decode(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    counters: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.sparse_decode.sparse_decode`."""
    return sparse_prefill(q, kv, plan, rope, seqlen_k, softmax_scale)
