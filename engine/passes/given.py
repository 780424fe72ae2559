"""Pages that every layer and head of an answer attends, and where they stand.

A small model reads best what stands next to the question, and among many numbers it follows the
near ones (docs/log.md). So given pages stand behind all else of the context: first the sinks, then
what the window has of the context, then the given pages, then question and answer. What is attended
is the same as in the order of the text; positions are packed either way.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.store.layout import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class GivenPages:
    """See the module.

    Args:
        pages: int64 [n], in the order in which they stand.
        before: the page that they stand before, that in which the context ends; none of them may
            lie behind it. 0 lets them stand before the window.
    """

    pages: torch.Tensor
    before: int = 0

    def near_start(self, window_start: int) -> int:
        """First token that stands behind the given pages, where the window starts there."""
        return max(window_start, self.before * PAGE_TOKENS) if window_start else 0

    def candidates(self, window_start: int, sink_tokens: int) -> tuple[torch.Tensor, int]:
        """What stands between sinks and `near_start` for windows that start there or later.

        Returns:
            pages int64 [m], and how many of them are there only for the window.
        """
        given = self.pages[self.pages >= sink_tokens // PAGE_TOKENS]
        if not self.before:
            return given, 0
        given = given[given < self.before]
        first = min(window_start // PAGE_TOKENS, self.before)
        tail = torch.arange(first, self.before, device=given.device)
        tail = tail[~torch.isin(tail, given)]
        return torch.cat((tail, given)), len(tail)

    def blocks(self, window_start: int, sink_tokens: int) -> torch.Tensor:
        """The pages between sinks and `near_start`, int64 [m], in the order in which they stand."""
        pages, _ = self.candidates(window_start, sink_tokens)
        return pages if self.before else pages[pages < window_start // PAGE_TOKENS]


def beyond_window(pages: torch.Tensor, window_start: torch.Tensor | int) -> torch.Tensor:
    """Pages with -1 in place of those of the window, which are on a device anyway."""
    return pages.masked_fill(pages >= window_start // PAGE_TOKENS, -1)


class GivenBlocks:
    """`GivenPages` for steps whose window start is known to the device alone.

    Args:
        given: the pages.
        window_start: of the first step, or the first one above 0 that may come.
        sink_tokens: attended anyway.
        num_kv_heads: attend the same pages.

    Attributes:
        blocks: int32 [1, num_kv_heads, m], the pages of the last step, -1 behind them.
        near_starts: int32 [1], see `GivenPages.near_start`.
    """

    def __init__(
        self, given: GivenPages, window_start: int, sink_tokens: int, num_kv_heads: int
    ) -> None:
        pages, tail = given.candidates(window_start, sink_tokens)
        self._before = given.before
        self._pages = pages.int()
        self._of_window = torch.arange(len(pages), device=pages.device) < tail
        self.blocks = self._pages.new_full((1, num_kv_heads, len(pages)), -1)
        self.near_starts = torch.zeros(1, dtype=torch.int32, device=pages.device)
        # One place more, where pages that are left out are written.
        self._spare = torch.full((len(pages) + 1,), -1, dtype=torch.int32, device=pages.device)

    def begin(self, window_starts: torch.Tensor) -> None:
        """Arrange them for a window start int32 [1]; nothing waits for the device."""
        near = window_starts.clamp(min=self._before * PAGE_TOKENS)
        self.near_starts.copy_(near.masked_fill(window_starts == 0, 0))
        first = window_starts // PAGE_TOKENS
        inside = self._pages < first
        if self._before:
            inside = ~self._of_window | (self._pages >= first)
        places = (inside.cumsum(0) - 1).masked_fill(~inside, len(self._pages))
        self._spare.fill_(-1).scatter_(0, places, self._pages)
        self.blocks.copy_(self._spare[:-1])
