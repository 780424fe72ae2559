"""The attention of each kind of forward pass: reading a document, asking, answering.

`PrefillPass` reads the document. `QuestionPass` runs the tokens of a question, each with its own
selection, while all heads vote for passages. `AnswerPass` generates: with a fixed set of passages
for every layer and head (share), or with the method's own selection (attend).
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.dense import fused_attention
from hipcli.engine.methods.base import Geometry, Method, no_blocks
from hipcli.engine.parts import Part, parts
from hipcli.engine.selection import (
    best_blocks,
    best_score,
    between,
    voted_pages,
    with_pages,
)
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, num_pages
from hipcli.engine.views import PackedView
from hipcli.engine.vote import Ballot
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import SparsePlan
from hipcli.kernels.vote import MAX_TOKENS, vote


@dataclass(slots=True)
class PrefillPass:
    """Chunks of a document, selected for in blocks of 64 queries."""

    method: Method
    _chunk: tuple[int, int] = (-1, -1)
    _chunk_parts: list[Part] = field(default_factory=list)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        own = self.method.own_attention
        if own is None or not own.keeps_state:
            step.end_where_written(layer)
        if own is not None:
            return own.attend(layer, q, step)
        if (step.start, q.shape[0]) != self._chunk:
            self._chunk = (step.start, q.shape[0])
            self._chunk_parts = parts(self.method.geometry, *self._chunk, q.device)
        outs = [
            self._attend(layer, q[part.low : part.high], step, part) for part in self._chunk_parts
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, layer: int, q: torch.Tensor, step: StepInput, part: Part) -> torch.Tensor:
        store, geometry = step.store, self.method.geometry
        blocks, sink_tokens, local_tokens = None, 0, part.end
        block_size_k = self.method.prefill_block_size_k
        if part.dense and store.device.type == "cuda" and q.dtype != torch.float32:
            return fused_attention(layer, q, step, part.end - q.shape[0], part.end)
        if not part.dense:
            blocks = self.method.select_prefill(layer, q, part.window_starts, step)
            sink_tokens = geometry.sink_tokens
            selected = 0 if blocks is None else blocks.shape[2] * block_size_k
            local_tokens = sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS
        first = geometry.window_start(part.end - q.shape[0])
        store.check_attended(layer, blocks, block_size_k, sink_tokens, first)
        plan = SparsePlan(
            no_blocks(len(part.window_starts), step) if blocks is None else blocks,
            part.window_starts,
            PAGE_TOKENS,
            block_size_k,
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
    """Tokens of a question: every key is scored exactly, for the vote and maybe the selection.

    A head left to itself loses in realistic text what others find. So half of what a layer selects
    are the pages with most votes so far, its own and those of the layers below; the other half
    every token and KV head chooses by its own scores.

    Args:
        method: attends, selects, or leaves the selection to the exact scores.
        ballot: collects the votes.
        budget_tokens: tokens selected for each query and KV head.
        block_size_k: tokens of a block selected by exact scores.
    """

    method: Method
    ballot: Ballot
    budget_tokens: int
    block_size_k: int

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        page_max, lse = self._votes(layer, q, step)
        self.ballot.count(layer, page_max, lse)
        if self.method.own_attention is not None:
            return self.method.own_attention.attend(layer, q, step)
        geometry, block_size_k = self.method.geometry, self.method.block_size_k
        positions = torch.arange(step.start, step.start + q.shape[0], device=q.device)
        starts = geometry.window_starts_at(positions)
        if geometry.window_start(step.start + q.shape[0] - 1) == 0:
            blocks: torch.Tensor | None = no_blocks(q.shape[0], step)
        else:
            blocks = self.method.select_question(layer, q, starts, step)
        if blocks is None:
            block_size_k = self.block_size_k
            blocks = self._select(layer, q, step, (page_max - lse.unsqueeze(-1)), starts)
        return attend_tokens(layer, q, step, (blocks, starts), geometry, block_size_k)

    def _votes(
        self, layer: int, q: torch.Tensor, step: StepInput
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Page maxima fp32 [T, num_heads, pages of the context] and their log-sum-exp."""
        store, ballot = step.store, self.ballot
        distance, context = ballot.distance_tokens, ballot.context_tokens
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
        page_max = page_max[:, :, : num_pages(context)]
        if ballot.first_page is not None:
            # Heads with nothing to say look at the first tokens: that is no vote for the text
            # behind them.
            first = ballot.first_page
            start = first * PAGE_TOKENS + ballot.first_token % PAGE_TOKENS
            tokens = range(start, min((first + 1) * PAGE_TOKENS, context))
            page_max[:, :, first] = best_score(layer, q, step, tokens, distance)
        return page_max, lse

    def _select(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        shares: torch.Tensor,
        window_starts: torch.Tensor,
    ) -> torch.Tensor:
        """Blocks between sinks and window of each token, int32 [T, num_kv_heads, n]."""
        store, distance = step.store, self.ballot.distance_tokens
        first = self.method.geometry.sink_tokens // PAGE_TOKENS
        last = self.method.geometry.window_start(step.start) // PAGE_TOKENS
        most = voted_pages(self.budget_tokens)
        voted = self.ballot.leaders(most, first, max(first, last))
        num_blocks = (self.budget_tokens - most * PAGE_TOKENS) // self.block_size_k
        shares = shares.unflatten(1, (store.layout.num_kv_heads, -1)).amax(2)
        shares = between(shares, self.method.geometry.sink_tokens, window_starts)
        shares[:, :, voted] = -torch.inf
        # The best n blocks lie in the n pages with the best blocks.
        pages = select_blocks(shares, min(num_blocks, shares.shape[2]), backend=store.backend)
        blocks = best_blocks(
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
        return with_pages(blocks, voted, self.block_size_k)


@dataclass(slots=True)
class UnvotedPass:
    """Tokens of a question without a look at every key: the time hardly grows with the context.

    Args:
        method: attends, or selects by itself.
        own_words: which of the pass's tokens are the asker's own, [start, end).
    """

    method: Method
    own_words: tuple[int, int]

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        method, blocks = self.method, None
        if method.own_attention is not None:
            return method.own_attention.attend(layer, q, step)
        positions = torch.arange(step.start, step.start + q.shape[0], device=q.device)
        starts = method.geometry.window_starts_at(positions)
        if method.geometry.window_start(step.start + q.shape[0] - 1) > 0:
            blocks = method.select_question(layer, q, starts, step)
            if blocks is None:
                blocks = method.select_unvoted(layer, q, starts, step, self.own_words)
        if blocks is None:
            blocks = no_blocks(q.shape[0], step)
        return attend_tokens(layer, q, step, (blocks, starts), method.geometry, method.block_size_k)


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

    @property
    def graphs(self) -> bool:
        """A CUDA graph can hold its steps."""
        return self.pages is not None or self.method.decode_graphs

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        if self.pages is None and self.method.own_attention is not None:
            return self.method.own_attention.attend(layer, q, step)
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
