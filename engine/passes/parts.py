"""A chunk of a document as the pieces that one kernel call each attends."""

from dataclasses import dataclass

import torch

from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.store.pages import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Part:
    """Queries [low, high) of a chunk that one call attends; `end` is the position after them.

    `window_starts` int32 [num_q_blocks]; `dense` where they are all 0.
    """

    low: int
    high: int
    end: int
    dense: bool
    window_starts: torch.Tensor


def parts(geometry: Geometry, start: int, tokens: int, device: torch.device) -> list[Part]:
    """A chunk cut where attention stops being dense, and where it starts inside a page."""
    end = start + tokens
    num_dense = geometry.window_starts(start, end).count(0)
    borders = [start]
    if num_dense:
        borders.append(min(end, (start // PAGE_TOKENS + num_dense) * PAGE_TOKENS))
    elif start % PAGE_TOKENS:
        borders.append(min(end, (start // PAGE_TOKENS + 1) * PAGE_TOKENS))
    if borders[-1] < end:
        borders.append(end)
    found = []
    for low, high in zip(borders[:-1], borders[1:], strict=True):
        dense = geometry.window_start(low) == 0
        first = low if dense else low // PAGE_TOKENS * PAGE_TOKENS
        positions = torch.arange(first, high, PAGE_TOKENS, device=device)
        starts = torch.zeros_like(positions).int()
        starts = starts if dense else geometry.window_starts_at(positions)
        found.append(Part(low - start, high - start, high, dense, starts))
    return found
