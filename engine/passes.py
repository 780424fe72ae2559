"""The attention of each kind of forward pass: reading a document, asking, answering.

`PrefillPass` reads the document. `QuestionPass` runs the tokens of a question, each with its own
selection, while all heads vote for passages. `AnswerPass` generates: with a fixed set of passages
for every layer and head (share), or with the method's own selection (attend).
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.methods.base import Method
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.engine.views import PackedView
from hipcli.engine.vote import Ballot
from hipcli.kernels.sparse_prefill.cpu_impl import sparse_prefill


@dataclass(slots=True)
class PrefillPass:
    """Chunks of a document, selected for in blocks of 64 queries."""

    method: Method

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        geometry = self.method.geometry
        end = step.start + q.shape[0]
        window_starts = geometry.window_starts(step.start, end)
        blocks = self.method.select_prefill(layer, q, window_starts, step)
        selected = 0 if blocks is None else blocks.shape[2] * PAGE_TOKENS
        reach = end - min(window_starts) if any(window_starts) else 0
        dense_end = end if 0 in window_starts else 0
        step.tables.ensure(max(dense_end, geometry.sink_tokens + selected + reach))
        return sparse_prefill(
            q,
            step.store.pages[layer],
            blocks,
            window_starts,
            (step.tables.cos, step.tables.sin),
            query_start=step.start,
            sink_tokens=geometry.sink_tokens,
            block_size_k=PAGE_TOKENS,
            softmax_scale=step.softmax_scale,
        )


@dataclass(slots=True)
class QuestionPass:
    """Tokens of a question: every key is scored exactly, for the selection and for the vote.

    Args:
        method: whose geometry is used; its own selection is replaced by the exact scores.
        ballot: collects the votes.
        budget_tokens: tokens selected for each query and KV head.
        block_size_k: tokens of a selected block.
    """

    method: Method
    ballot: Ballot
    budget_tokens: int
    block_size_k: int

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        maxima = self.ballot.count(layer, q, step, self.block_size_k)
        geometry = self.method.geometry
        starts = [geometry.window_start(step.start + i) for i in range(q.shape[0])]
        if not any(starts):
            return self._view(layer, step, 0, None).attend(layer, q, step)
        out = torch.empty_like(q)
        for i, window_start in enumerate(starts):
            # One token is one pass of its own that ends at this token.
            one = StepInput(step.store, step.tables, self, step.start + i, step.softmax_scale)
            blocks = self._select(maxima, i, window_start)
            view = self._view(layer, one, window_start, blocks)
            out[i : i + 1] = view.attend(layer, q[i : i + 1], one)
        return out

    def _view(
        self, layer: int, step: StepInput, window_start: int, blocks: torch.Tensor | None
    ) -> PackedView:
        return PackedView.gather(
            layer,
            step,
            window_start,
            blocks,
            sink_tokens=self.method.geometry.sink_tokens,
            block_size_k=self.block_size_k,
        )

    def _select(self, maxima: torch.Tensor, token: int, window_start: int) -> torch.Tensor | None:
        """Best blocks between sinks and window for one token, int64 [num_kv_heads, n]."""
        if window_start == 0:
            return None
        first = self.method.geometry.sink_tokens // self.block_size_k
        scores = maxima[:, first : window_start // self.block_size_k, :, token]
        best = torch.log_softmax(scores, dim=1).amax(2)
        count = min(self.budget_tokens // self.block_size_k, best.shape[1])
        return best.topk(count, dim=1).indices.sort(1).values + first


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

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        geometry = self.method.geometry
        window_start = geometry.window_start(step.start)
        if window_start == 0:
            blocks, size = None, PAGE_TOKENS
        elif self.pages is not None:
            blocks, size = self._shared(window_start, step), PAGE_TOKENS
        else:
            if q.shape[0] > 1:
                raise ValueError("without given pages an answer is generated token by token")
            blocks = self.method.select_token(layer, q[0], step)
            size = self.method.block_size_k
        view = self._views.get(layer)
        if not self._fits(view, window_start, blocks, step, q.shape[0]):
            view = PackedView.gather(
                layer,
                step,
                window_start,
                blocks,
                sink_tokens=geometry.sink_tokens,
                block_size_k=size,
                spare_tokens=q.shape[0] + PAGE_TOKENS,
            )
            self._views[layer] = view
        return view.attend(layer, q, step)

    def _shared(self, window_start: int, step: StepInput) -> torch.Tensor:
        first = self.method.geometry.sink_tokens // PAGE_TOKENS
        inside = (self.pages >= first) & (self.pages < window_start // PAGE_TOKENS)
        return self.pages[inside].expand(step.store.layout.num_kv_heads, -1)

    @staticmethod
    def _fits(
        view: PackedView | None,
        window_start: int,
        blocks: torch.Tensor | None,
        step: StepInput,
        tokens: int,
    ) -> bool:
        if view is None or view.end != step.start or not view.has_room(tokens):
            return False
        if view.window_start != window_start:
            return False
        if blocks is None or view.blocks is None:
            return blocks is view.blocks
        return blocks is view.blocks or torch.equal(blocks, view.blocks)
