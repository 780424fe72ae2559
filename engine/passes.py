"""The attention of each kind of forward pass: reading a document, asking, answering.

`PrefillPass` reads the document. `QuestionPass` runs the tokens of a question, each with its own
selection, while all heads vote for passages. `AnswerPass` generates: with a fixed set of passages
for every layer and head (share), or with the method's own selection (attend).
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.dense import fused_attention
from hipcli.engine.methods.base import Geometry, Method
from hipcli.engine.selection import best_blocks, between
from hipcli.engine.step import Step, StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, num_pages
from hipcli.engine.views import PackedView
from hipcli.engine.vote import Ballot
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import SparsePlan
from hipcli.kernels.vote import MAX_TOKENS, vote


@dataclass(frozen=True, slots=True)
class _Part:
    """Queries [low, high) of a chunk that one call attends; `end` is the position after them.

    `window_starts` int32 [num_q_blocks]; `dense` where they are all 0.
    """

    low: int
    high: int
    end: int
    dense: bool
    window_starts: torch.Tensor


def _parts(geometry: Geometry, start: int, tokens: int, device: torch.device) -> list[_Part]:
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
    parts = []
    for low, high in zip(borders[:-1], borders[1:], strict=True):
        dense = geometry.window_start(low) == 0
        first = low if dense else low // PAGE_TOKENS * PAGE_TOKENS
        positions = torch.arange(first, high, PAGE_TOKENS, device=device)
        starts = torch.zeros_like(positions).int()
        starts = starts if dense else geometry.window_starts_at(positions)
        parts.append(_Part(low - start, high - start, high, dense, starts))
    return parts


@dataclass(slots=True)
class PrefillPass:
    """Chunks of a document, selected for in blocks of 64 queries."""

    method: Method
    _chunk: tuple[int, int] = (-1, -1)
    _chunk_parts: list[_Part] = field(default_factory=list)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        if (step.start, q.shape[0]) != self._chunk:
            self._chunk = (step.start, q.shape[0])
            self._chunk_parts = _parts(self.method.geometry, *self._chunk, q.device)
        outs = [
            self._attend(layer, q[part.low : part.high], step, part) for part in self._chunk_parts
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, layer: int, q: torch.Tensor, step: StepInput, part: _Part) -> torch.Tensor:
        store, geometry = step.store, self.method.geometry
        blocks, sink_tokens, local_tokens = None, 0, part.end
        if part.dense and store.device.type == "cuda" and q.dtype != torch.float32:
            return fused_attention(layer, q, step, part.end - q.shape[0], part.end)
        if not part.dense:
            blocks = self.method.select_prefill(layer, q, part.window_starts, step)
            sink_tokens = geometry.sink_tokens
            selected = 0 if blocks is None else blocks.shape[2] * PAGE_TOKENS
            local_tokens = sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS
        first = geometry.window_start(part.end - q.shape[0])
        store.check_attended(layer, blocks, PAGE_TOKENS, sink_tokens, first)
        plan = SparsePlan(
            no_blocks(len(part.window_starts), step) if blocks is None else blocks,
            part.window_starts,
            PAGE_TOKENS,
            PAGE_TOKENS,
            sink_tokens,
            local_tokens,
        )
        # Rows for the whole chunk beyond the plan's own: on a CPU its windows share their keys.
        rope = step.tables.first(local_tokens + q.shape[0])
        return sparse_prefill(
            q,
            store.kv[layer],
            plan,
            rope,
            store.seqlen_k(part.end),
            step.softmax_scale,
            return_lse=False,
            backend=store.backend,
        )[0]


def no_blocks(num_queries: int, step: Step) -> torch.Tensor:
    """The selection of a method that selects nothing: int32 [num_queries, num_kv_heads, 0]."""
    shape = (num_queries, step.store.layout.num_kv_heads, 0)
    return torch.empty(shape, dtype=torch.int32, device=step.store.device)


def attend_tokens(
    layer: int,
    q: torch.Tensor,
    step: StepInput,
    plan: tuple[torch.Tensor, torch.Tensor],
    geometry: Geometry,
    block_size_k: int,
) -> torch.Tensor:
    """Attend the T tokens of a pass, each with a plan of its own.

    Args:
        layer: which layer.
        q: [T, num_heads, head_dim], un-rotated.
        step: the pass.
        plan: block_indices int32 [T, num_kv_heads, n] and window_starts int32 [T].
        geometry: sinks and window.
        block_size_k: tokens of a block.
    """
    blocks, window_starts = plan
    end = step.start + q.shape[0]
    selected = blocks.shape[2] * block_size_k
    sparse = geometry.sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS + q.shape[0]
    dense = end if geometry.window_start(step.start) == 0 else 0
    local_tokens = max(sparse, dense)
    store = step.store
    first = geometry.window_start(step.start)
    store.check_attended(layer, blocks, block_size_k, geometry.sink_tokens, first)
    return sparse_decode(
        q,
        store.kv[layer],
        SparsePlan(blocks, window_starts, 1, block_size_k, geometry.sink_tokens, local_tokens),
        step.tables.first(local_tokens),
        store.seqlen_k(end),
        step.softmax_scale,
        backend=store.backend,
    )[0]


@dataclass(slots=True)
class QuestionPass:
    """Tokens of a question: every key is scored exactly, for the selection and for the vote.

    Without a ballot no pass over all keys is made: the method selects by itself, and the time
    hardly grows with the context.

    Args:
        method: whose geometry is used; its own selection is replaced by the exact scores unless
            `own_selection` is set.
        ballot: collects the votes; None for no vote.
        budget_tokens: tokens selected by exact scores for each query and KV head.
        block_size_k: tokens of a block selected by them.
        own_selection: the method selects, whether there is a vote or not.
        words: which of the pass's tokens are the asker's own, [start, end).
    """

    method: Method
    ballot: Ballot | None
    budget_tokens: int
    block_size_k: int
    own_selection: bool = False
    words: tuple[int, int] = (0, 1)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        geometry, block_size_k = self.method.geometry, self.block_size_k
        positions = torch.arange(step.start, step.start + q.shape[0], device=q.device)
        starts = geometry.window_starts_at(positions)
        shares = None
        if self.ballot is not None:
            page_max, lse = self._votes(layer, q, step, self.ballot)
            self.ballot.count(layer, page_max, lse)
            shares = page_max - lse.unsqueeze(-1)
        if geometry.window_start(step.start + q.shape[0] - 1) == 0:
            blocks = no_blocks(q.shape[0], step)
        elif self.own_selection or self.ballot is None or shares is None:
            blocks, block_size_k = self._own(layer, q, step, starts), self.method.block_size_k
        else:
            blocks = self._select(layer, q, step, shares, starts, self.ballot.distance_tokens)
        return attend_tokens(layer, q, step, (blocks, starts), geometry, block_size_k)

    def _own(
        self, layer: int, q: torch.Tensor, step: StepInput, window_starts: torch.Tensor
    ) -> torch.Tensor:
        """The method's own blocks of each token, int32 [T, num_kv_heads, n]."""
        blocks = self.method.select_unvoted(layer, q, window_starts, step, self.words)
        return no_blocks(q.shape[0], step) if blocks is None else blocks

    def _votes(
        self, layer: int, q: torch.Tensor, step: StepInput, ballot: Ballot
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Page maxima fp32 [T, num_heads, pages of the context] and their log-sum-exp."""
        store, distance = step.store, ballot.distance_tokens
        context = ballot.context_tokens
        store.check_keys(layer)
        rope, length = step.tables.first(distance + 1), store.seqlen_k(context)
        results = [
            vote(
                few,
                store.kv[layer],
                length,
                rope,
                distance,
                step.softmax_scale,
                backend=store.backend,
            )
            for few in q.split(MAX_TOKENS)
        ]
        page_max, lse = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*results, strict=True))
        return page_max[:, :, : num_pages(context)], lse

    def _select(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        shares: torch.Tensor,
        window_starts: torch.Tensor,
        distance: int,
    ) -> torch.Tensor:
        """Best blocks between sinks and window of each token, int32 [T, num_kv_heads, n]."""
        store = step.store
        num_blocks = self.budget_tokens // self.block_size_k
        shares = shares.unflatten(1, (store.layout.num_kv_heads, -1)).amax(2)
        shares = between(shares, self.method.geometry.sink_tokens, window_starts)
        # The best n blocks lie in the n pages with the best blocks.
        pages = select_blocks(shares, min(num_blocks, shares.shape[2]), backend=store.backend)
        return best_blocks(
            q,
            store.kv[layer],
            pages,
            step.tables.first(distance + 1),
            distance,
            self.block_size_k,
            num_blocks,
            step.softmax_scale,
            backend=store.backend,
        )


@dataclass(slots=True)
class AnswerPass:
    """Generation: one token at a time, or the question again with the passages given.

    Args:
        method: geometry, and the selection when no pages are given.
        pages: int64 [n] pages that every layer and head attends besides sinks and window,
            ascending; None lets the method select per layer and KV head.
    """

    method: Method
    pages: torch.Tensor | None = None
    _views: dict[int, PackedView] = field(default_factory=dict)
    # Given pages make one plan for all layers of a pass.
    _plan: tuple[torch.Tensor, torch.Tensor] | None = None
    _plan_of: tuple[int, int] = (-1, -1)

    @property
    def block_size_k(self) -> int:
        """Tokens of a selected block."""
        return self.method.block_size_k if self.pages is None else PAGE_TOKENS

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        window_start = self.method.geometry.window_start(step.start)
        if step.store.backend == "cpu":
            blocks = self._blocks(layer, q, step, window_start)
            return self._attend_view(layer, q, step, window_start, blocks)
        if self._plan is None or self.pages is None or self._plan_of != (step.start, q.shape[0]):
            self._plan = self._new_plan(layer, q, step, window_start)
            self._plan_of = (step.start, q.shape[0])
        return attend_tokens(layer, q, step, self._plan, self.method.geometry, self.block_size_k)

    def _new_plan(
        self, layer: int, q: torch.Tensor, step: StepInput, window_start: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """block_indices and window_starts for every token of the pass."""
        tokens = q.shape[0]
        blocks = self._blocks(layer, q, step, window_start)
        blocks = no_blocks(1, step)[0] if blocks is None else blocks.int().to(q.device)
        starts = step.store.filled(window_start).expand(tokens).contiguous()
        return blocks.expand(tokens, -1, -1).contiguous(), starts

    def _blocks(
        self, layer: int, q: torch.Tensor, step: StepInput, window_start: int
    ) -> torch.Tensor | None:
        """Selected blocks of the pass, [num_kv_heads, n], or None."""
        if window_start == 0:
            return None
        if self.pages is not None:
            return self.shared_pages(window_start).expand(step.store.layout.num_kv_heads, -1)
        if q.shape[0] > 1:
            raise ValueError("without given pages an answer is generated token by token")
        return self.method.select_token(layer, q[0], step)

    def shared_pages(self, window_start: int) -> torch.Tensor:
        """The given pages between sinks and window."""
        if self.pages is None:
            raise ValueError("no pages were given")
        first = self.method.geometry.sink_tokens // PAGE_TOKENS
        inside = (self.pages >= first) & (self.pages < window_start // PAGE_TOKENS)
        return self.pages[inside]

    def _attend_view(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        window_start: int,
        blocks: torch.Tensor | None,
    ) -> torch.Tensor:
        if blocks is not None:
            # A view is a rectangle; unused tails are equally long in all heads.
            blocks = blocks[:, blocks[0] >= 0]
        view = self._views.get(layer)
        if view is None or not view.fits(step, q.shape[0], window_start, blocks):
            sinks = self.method.geometry.sink_tokens
            step.store.check_attended(layer, blocks, self.block_size_k, sinks, window_start)
            view = PackedView.gather(
                layer,
                step,
                window_start,
                blocks,
                sink_tokens=sinks,
                block_size_k=self.block_size_k,
                spare_tokens=q.shape[0] + PAGE_TOKENS,
            )
            self._views[layer] = view
        return view.attend(layer, q, step)
