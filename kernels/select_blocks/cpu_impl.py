"""Selection on a CPU: a partial sort finds the threshold, a running count settles ties."""

from __future__ import annotations

import torch


def select_blocks(
    scores: torch.Tensor, num_selected: int, candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """See `hipcli.kernels.select_blocks.select_blocks`."""
    n = scores.shape[-1]
    usable = scores > -torch.inf
    if n > num_selected:
        scores = scores.masked_fill(~usable, -torch.inf)
        threshold = scores.topk(num_selected, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        above = scores > threshold
        equal = (scores == threshold) & usable
        needed = num_selected - above.sum(-1, keepdim=True)
        usable = above | (equal & (equal.cumsum(-1) <= needed))
    row, position = usable.flatten(0, 1).nonzero(as_tuple=True)
    counts = usable.flatten(0, 1).sum(-1)
    rank = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    if candidates is not None:
        per_page = n // candidates.shape[-1]
        pages = candidates.flatten(0, 1)[row, position // per_page]
        position = pages * per_page + position % per_page
    out = torch.full((len(counts), num_selected), -1, dtype=torch.int32)
    out[row, rank] = position.int()
    return out.unflatten(0, scores.shape[:2])
