"""Selection in plain PyTorch."""

from __future__ import annotations

import torch


def select_blocks(
    scores: torch.Tensor, num_selected: int, candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """See `hipcli.kernels.select_blocks.select_blocks`."""
    usable = scores > -torch.inf
    # A stable sort lets the lower position win among equals.
    order = scores.masked_fill(~usable, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    order = order[..., :num_selected]
    chosen = usable.gather(-1, order)
    last = scores.shape[-1]
    positions = order.masked_fill(~chosen, last).sort(-1).values
    unused = positions == last
    if candidates is not None:
        per_page = scores.shape[-1] // candidates.shape[-1]
        places = (positions // per_page).clamp(max=candidates.shape[-1] - 1)
        pages = candidates.long().gather(-1, places)
        positions = pages * per_page + positions % per_page
    out = torch.full((*scores.shape[:2], num_selected), -1, dtype=torch.int32, device=scores.device)
    out[..., : positions.shape[-1]] = positions.masked_fill(unused, -1).int()
    return out
