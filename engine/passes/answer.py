"""The tokens of an answer: with given passages, or with the method's own selection."""

from dataclasses import dataclass, field

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.passes.given import GivenPages
from hipcli.engine.passes.tokens import attend_tokens
from hipcli.engine.passes.views import Frame, PackedView
from hipcli.engine.store.pages import PAGE_TOKENS


@dataclass(slots=True)
class AnswerPass:
    """Generation: one token at a time, or the question again with the passages given.

    Args:
        method: geometry, and the selection when no pages are given.
        pages: int64 [n] pages that every layer and head attends besides sinks and window, in the
            order in which they stand; None lets the method select per layer and KV head.
        before_page: where they stand, see `GivenPages`.
    """

    method: Method
    pages: torch.Tensor | None = None
    before_page: int = 0
    _views: dict[int, PackedView] = field(default_factory=dict)
    _frame: Frame | None = None
    # What is given between sinks and the window that starts there, for all KV heads.
    _shared: tuple[int, torch.Tensor] | None = None
    # Given pages make one plan for all layers of a pass.
    _plan: tuple[torch.Tensor, torch.Tensor] | None = None
    _plan_of: tuple[int, int] = (-1, -1)

    @property
    def block_size_k(self) -> int:
        """Tokens of a selected block."""
        return self.method.block_size_k if self.pages is None else PAGE_TOKENS

    @property
    def given(self) -> GivenPages | None:
        """The given pages, if there are any."""
        return None if self.pages is None else GivenPages(self.pages, self.before_page)

    @property
    def graphs(self) -> bool:
        """A CUDA graph can hold its steps."""
        return self.pages is not None or self.method.decode_graphs

    def together(self, start: int, most: int) -> int:
        """How many of `most` tokens from `start` on may run in one pass and attend what they would
        attend one by one.

        That is one where a method attends or selects by itself: what the next token selects is
        known once it has passed. Sinks, window and given pages are the same for all tokens of a
        page, and everything is attended where attention is dense.
        """
        if self.pages is None and self.method.own_attention is not None:
            return 1
        window_start = self.method.geometry.window_start(start)
        if window_start and self.pages is None and self.method.token_blocks:
            return 1
        on_page = PAGE_TOKENS - start % PAGE_TOKENS
        if most > on_page and self.method.geometry.window_start(start + most - 1) != window_start:
            return on_page
        return most

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        if self.pages is None and self.method.own_attention is not None:
            return self.method.own_attention.attend(layer, q, step)
        window_start = self.method.geometry.window_start(step.start)
        if step.store.backend == "cpu":
            blocks = self._blocks(layer, q, step, window_start)
            return self._attend_view(layer, q, step, self._near_start(window_start), blocks)
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
        starts = step.store.filled(self._near_start(window_start)).expand(tokens).contiguous()
        return blocks.expand(tokens, -1, -1).contiguous(), starts

    def _blocks(
        self, layer: int, q: torch.Tensor, step: StepInput, window_start: int
    ) -> torch.Tensor | None:
        """Selected blocks of the pass, [num_kv_heads, n], or None."""
        if window_start == 0:
            return None
        given = self.given
        if given is not None:
            if self._shared is None or self._shared[0] != window_start:
                pages = given.blocks(window_start, self.method.geometry.sink_tokens)
                self._shared = window_start, pages.expand(step.store.layout.num_kv_heads, -1)
            return self._shared[1]
        if not self.method.token_blocks:
            return None
        if q.shape[0] > 1:
            raise ValueError("a method that selects generates an answer token by token")
        return self.method.select_token(layer, q[0], step)

    def _near_start(self, window_start: int) -> int:
        """First token behind the blocks, where the window starts there."""
        return window_start if self.given is None else self.given.near_start(window_start)

    def _attend_view(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        near_start: int,
        blocks: torch.Tensor | None,
    ) -> torch.Tensor:
        if blocks is not None and self.pages is None:
            # A view is a rectangle; unused tails are equally long in all heads.
            blocks = blocks[:, blocks[0] >= 0]
        view = self._views.get(layer)
        if view is None or not view.fits(step, q.shape[0], near_start, blocks):
            sinks = self.method.geometry.sink_tokens
            step.store.check_attended(layer, blocks, self.block_size_k, sinks, near_start)
            view = PackedView.gather(
                layer,
                step,
                near_start,
                blocks,
                sink_tokens=sinks,
                block_size_k=self.block_size_k,
                spare_tokens=q.shape[0] + PAGE_TOKENS,
            )
            self._views[layer] = view
        if self._frame is None or not self._frame.serves(view, q.shape[0]):
            self._frame = Frame.of(view, q, step)
        return view.attend(q, step, self._frame)
