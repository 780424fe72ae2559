"""The merge in plain PyTorch."""

from __future__ import annotations

import torch


def merge_partials(
    outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.merge_partials.merge_partials`."""
    lse = torch.logsumexp(lses, dim=0)
    empty = lses == -torch.inf
    # An all-empty column would give exp(-inf + inf) = NaN.
    weights = (lses - lse).exp().masked_fill(empty, 0.0)
    parts = outs.float().masked_fill(empty[..., None], 0.0)
    return (weights[..., None] * parts).sum(0).to(dtype or outs.dtype), lse
