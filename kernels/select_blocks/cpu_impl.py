"""Selection on a CPU: a partial sort finds the threshold, what reaches it is put in order.

Rows are as long as the context has pages, so the whole of them is passed over as seldom as can
be: for the maxima of groups, and for the places that reach the threshold.
"""

from __future__ import annotations

import torch

# Neighbours whose maximum decides whether they are looked at one by one.
GROUP = 16


def select_blocks(
    scores: torch.Tensor, num_selected: int, candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """See `hipcli.kernels.select_blocks.select_blocks`."""
    n = scores.shape[-1]
    rows = scores.flatten(0, 1)
    if bool(rows.amax(-1).isnan().any()):
        rows = torch.where(rows > -torch.inf, rows, -torch.inf)
    if n > num_selected:
        threshold = _nth_largest(rows, num_selected)
        row, position = (rows >= threshold).nonzero(as_tuple=True)
        value, least = rows[row, position], threshold[row, 0]
        # Of those that equal the threshold the first ones are taken, as many as there is room for.
        equal = value == least
        above = torch.bincount(row[~equal], minlength=len(rows))
        ties = equal.cumsum(0)
        before = torch.zeros(len(rows) + 1, dtype=torch.int64)
        before[1:] = torch.bincount(row[equal], minlength=len(rows)).cumsum(0)
        kept = ~equal | (ties - before[row] <= num_selected - above[row])
        kept &= value > -torch.inf
        row, position = row[kept], position[kept]
    else:
        row, position = (rows > -torch.inf).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(rows))
    rank = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row]
    if candidates is not None:
        per_page = n // candidates.shape[-1]
        pages = candidates.flatten(0, 1)[row, position // per_page]
        position = pages * per_page + position % per_page
    out = torch.full((len(rows), num_selected), -1, dtype=torch.int32)
    out[row, rank] = position.int()
    return out.unflatten(0, scores.shape[:2])


def _nth_largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The value of rank `count` in each of [n, m] rows without NaN: [n, 1].

    Of long rows only the groups with the largest maxima are sorted: `count` of them hold all
    values above the one in question, and enough that equal it.
    """
    whole = rows.shape[1] // GROUP * GROUP
    if whole // GROUP > 2 * count:
        groups = rows[:, :whole].unflatten(1, (-1, GROUP))
        best = groups.amax(2).topk(count, dim=1, sorted=False).indices
        few = groups.gather(1, best.unsqueeze(2).expand(-1, -1, GROUP)).flatten(1)
        rows = torch.cat((few, rows[:, whole:]), 1)
    return rows.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
