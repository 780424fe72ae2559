"""The attention of each kind of forward pass on one rank; what `engine/passes` is to one device.

`ShardReading` reads a document, every rank the tokens of its own pages. The tokens of a question
(`ShardQuestion` with a vote of all heads, `ShardUnvoted` without) and of an answer (`ShardAnswer`)
run on all ranks alike.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from hipcli.engine.distributed.attending import (
    ShardStep,
    attend_alike,
    attend_here,
    gather_queries,
    return_partials,
)
from hipcli.engine.distributed.choosing import Chooser
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.passes.given import GivenPages
from hipcli.engine.passes.parts import Part, parts
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.kernels.types import SparsePlan


class ShardAttention(Protocol):
    """The attention of one pass on one rank."""

    def attend(self, layer: int, q: torch.Tensor, step: ShardStep) -> torch.Tensor:
        """Attend with this rank's queries of one layer, [T, num_heads, head_dim]; collective."""


@dataclass(slots=True)
class ShardReading:
    """Chunks of a document."""

    method: Method
    chooser: Chooser

    def attend(self, layer: int, q: torch.Tensor, step: ShardStep) -> torch.Tensor:
        """See `ShardAttention`; q are the queries of the tokens on this rank's pages."""
        step.end_where_written(layer)
        everyone = gather_queries(q, step)
        results = [
            self._attend(layer, everyone[part.low : part.high], step, part)
            for part in parts(self.method.geometry, step.start, step.tokens, q.device)
        ]
        outs, lses = zip(*results, strict=True)
        return return_partials(torch.cat(outs), torch.cat(lses), q, step)

    def _attend(
        self, layer: int, q: torch.Tensor, step: ShardStep, part: Part
    ) -> tuple[torch.Tensor, torch.Tensor]:
        geometry, size = self.method.geometry, self.method.prefill_block_size_k
        blocks, sink_tokens, local_tokens = None, 0, part.end
        first = geometry.window_start(part.end - q.shape[0])
        if not part.dense:
            windows = (first, geometry.window_start(part.end - 1))
            blocks = self.chooser.for_chunk(layer, q, part.window_starts, windows, step)
            sink_tokens = geometry.sink_tokens
            selected = 0 if blocks is None else blocks.shape[2] * size
            local_tokens = sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS
        step.store.check_attended(layer, blocks, size, sink_tokens, first)
        plan = SparsePlan(
            no_blocks(len(part.window_starts), step) if blocks is None else blocks,
            part.window_starts,
            PAGE_TOKENS,
            size,
            sink_tokens,
            local_tokens,
        )
        return attend_here(layer, q, step, plan, part.end)


@dataclass(slots=True)
class ShardUnvoted:
    """Tokens of a question without a look at every key.

    Args:
        method: sinks and window.
        chooser: selects.
        own_words: which of the pass's tokens are the asker's own, [start, end).
    """

    method: Method
    chooser: Chooser
    own_words: tuple[int, int]

    def attend(self, layer: int, q: torch.Tensor, step: ShardStep) -> torch.Tensor:
        """See `ShardAttention`."""
        geometry, blocks = self.method.geometry, None
        starts = window_starts(self.method, step, q.device)
        if geometry.window_start(step.end - 1) > 0:
            blocks = self.chooser.unvoted(layer, q, starts, step, self.own_words)
        if blocks is None:
            blocks = no_blocks(len(q), step)
        return attend_alike(layer, q, step, (blocks, starts), self.method, self.method.block_size_k)


@dataclass(slots=True)
class ShardAnswer:
    """The tokens of an answer.

    Args:
        method: sinks and window.
        chooser: selects where no pages are given.
        given: pages that every layer and head attends; None lets the method select.
    """

    method: Method
    chooser: Chooser
    given: GivenPages | None = None
    _given_blocks: tuple[int, torch.Tensor] | None = None

    def attend(self, layer: int, q: torch.Tensor, step: ShardStep) -> torch.Tensor:
        """See `ShardAttention`."""
        start = self.method.geometry.window_start(step.start)
        near_start = start if self.given is None else self.given.near_start(start)
        starts = step.store.filled(near_start).expand(len(q)).contiguous()
        size = self.method.block_size_k if self.given is None else PAGE_TOKENS
        blocks = None
        if start and self.given is not None:
            shape = (len(q), step.store.layout.num_kv_heads, -1)
            blocks = self._pages(self.given, start).expand(shape).contiguous()
        elif start:
            blocks = self.chooser.for_token(layer, q, starts, step)
        if blocks is None:
            blocks = no_blocks(len(q), step)
        return attend_alike(layer, q, step, (blocks, starts), self.method, size)

    def _pages(self, given: GivenPages, window_start: int) -> torch.Tensor:
        """Given pages behind the sinks int32 [n], the same for all layers of a step and for all
        steps of a page, which wait for no device then."""
        if self._given_blocks is None or self._given_blocks[0] != window_start:
            pages = given.blocks(window_start, self.method.geometry.sink_tokens).int()
            self._given_blocks = window_start, pages
        return self._given_blocks[1]


def window_starts(method: Method, step: ShardStep, device: torch.device) -> torch.Tensor:
    """int32 [T] of the tokens of a pass."""
    positions = torch.arange(step.start, step.end, device=device)
    return method.geometry.window_starts_at(positions)
