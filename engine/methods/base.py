"""What every attention method supplies: where a query's window starts and which blocks it selects.

The geometry is shared. A query at position i attends the sinks [0, sink_tokens), the window from
`window_start` to itself, and the blocks the method selects between the two. Window starts lie on
the grid of pages, so a token is processed alike in a long chunk, a short one, or alone.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS


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

    def window_start(self, position: int) -> int:
        """First token of the window of the query at `position`; 0 where attention is dense."""
        page_start = position // PAGE_TOKENS * PAGE_TOKENS
        start = page_start - self.window_tokens
        if page_start < self.dense_tokens or start <= self.sink_tokens:
            return 0
        return start

    def window_starts(self, start: int, end: int) -> list[int]:
        """Window starts of the query blocks that hold positions [start, end)."""
        first, last = start // PAGE_TOKENS, -(-end // PAGE_TOKENS)
        return [self.window_start(page * PAGE_TOKENS) for page in range(first, last)]


class Method(Protocol):
    """An attention method."""

    name: str
    geometry: Geometry
    block_size_k: int

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: list[int], step: StepInput
    ) -> torch.Tensor | None:
        """Blocks for each query block of a chunk.

        Args:
            layer: index of the layer.
            q: [T, num_heads, head_dim], un-rotated.
            window_starts: per query block; blocks are wanted where it is above 0.
            step: the pass.

        Returns:
            int64 [num_q_blocks, num_kv_heads, n] in units of a page, or None for no selection.
        """

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        """Blocks for one query, a decode step or a token of the question.

        Args:
            q: [num_heads, head_dim], un-rotated.

        Returns:
            int64 [num_kv_heads, n] in units of `block_size_k` tokens, ascending, or None.
        """
