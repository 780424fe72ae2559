"""Sinks and windows: what a query attends whatever its method selects.

A query at position i attends the sinks [0, sink_tokens), the window from `window_start` to itself,
and the blocks the method selects between the two. Window starts lie on the grid of pages, so a
token is processed alike in a long chunk, a short one, or alone.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.store.layout import PAGE_TOKENS

# Slots of a tiered store that nobody counts on: pages come to stand in them while others go.
SPARE_PAGES = 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sinks, window and the length up to which attention is dense, all in tokens.

    Args:
        sink_tokens: first tokens that every query attends; a multiple of the page size.
        window_tokens: last tokens that every query attends; a multiple of the page size.
        dense_tokens: queries at earlier positions attend everything.
    """

    sink_tokens: int
    window_tokens: int
    dense_tokens: int

    @classmethod
    def covered(cls, sink_tokens: int, window_tokens: int, budget_tokens: int) -> "Geometry":
        """Dense until a budget no longer covers what lies between sinks and window: one that covers
        the context is dense attention exactly."""
        return cls(sink_tokens, window_tokens, sink_tokens + window_tokens + budget_tokens)

    def window_start(self, position: int) -> int:
        """First token of the window of the query at `position`; 0 where attention is dense."""
        page_start = position // PAGE_TOKENS * PAGE_TOKENS
        start = page_start - self.window_tokens
        if page_start < self.dense_tokens or start <= self.sink_tokens:
            return 0
        return start

    def first_window_start(self, position: int) -> int:
        """`window_start` of the first query from `position` on that does not attend everything."""
        page = -(-max(self.dense_tokens, self.sink_tokens + self.window_tokens + 1) // PAGE_TOKENS)
        return self.window_start(max(position, page * PAGE_TOKENS))

    def kept_from(self, start: int, end: int, device_pages: int) -> int:
        """First token that a pass over [start, end) finds on the device without fetching it.

        Its windows; where attention is dense everything, as long as so many pages are there with
        some to spare. Where they are not, dense attention goes piece by piece.
        """
        window_start = self.window_start(start)
        if window_start or -(-end // PAGE_TOKENS) + SPARE_PAGES <= device_pages:
            return window_start
        return max(0, start // PAGE_TOKENS * PAGE_TOKENS - self.window_tokens)

    def window_starts(self, start: int, end: int) -> list[int]:
        """Window starts of the query blocks that hold positions [start, end)."""
        first, last = start // PAGE_TOKENS, -(-end // PAGE_TOKENS)
        return [self.window_start(page * PAGE_TOKENS) for page in range(first, last)]

    def window_starts_at(self, positions: torch.Tensor) -> torch.Tensor:
        """`window_start` of positions int64 [N], on their device: int32 [N]."""
        page_start = positions // PAGE_TOKENS * PAGE_TOKENS
        start = page_start - self.window_tokens
        dense = (page_start < self.dense_tokens) | (start <= self.sink_tokens)
        return start.masked_fill(dense, 0).int()
