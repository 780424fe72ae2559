"""What every attention method supplies: its geometry, and which blocks a query selects."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hipcli.engine.forward.step import LayerAttention, Step, StepInput
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore


@dataclass(slots=True)
class Schedule:
    """When a decode step selects anew; between two selections its plan is kept.

    Args:
        page_steps: decode steps between two choices of candidate pages.
        block_steps: decode steps between two choices of blocks among them.
    """

    page_steps: int
    block_steps: int
    _window_start: int = -1
    _pages_at: int = -1
    _blocks_at: int = -1

    def next(self, position: int, window_start: int) -> str:
        """What the step at `position` does: `keep` the plan, choose `blocks`, or `pages` too."""
        if window_start == 0:
            return "keep"
        # Tokens that left the window must become candidates at once.
        moved = window_start != self._window_start or position < self._blocks_at
        if moved or position - self._pages_at >= self.page_steps:
            self._window_start, self._pages_at, self._blocks_at = window_start, position, position
            return "pages"
        if position - self._blocks_at >= self.block_steps:
            self._blocks_at = position
            return "blocks"
        return "keep"


class OwnAttention(LayerAttention, Protocol):
    """The attention of a method that attends by itself, whatever the pass.

    Attributes:
        keeps_state: it knows more of a context than its keys and values tell: the store's
            `companion`, which a session saves.
    """

    @property
    def keeps_state(self) -> bool:
        """See the class."""

    def resume(self, store: KVStore, tensors: dict[str, torch.Tensor]) -> None:
        """Make the companion of a store again whose pages came from a session.

        Args:
            store: holds the whole context.
            tensors: what `Companion.tensors` gave.

        Raises:
            DamagedSessionError: they do not belong to this context.
        """

    def attended(self, layer: int, store: KVStore, position: int) -> torch.Tensor:
        """Which keys the last query attended, for who measures a method.

        Args:
            layer: which layer.
            store: what it attended.
            position: of the last query of the last pass.

        Returns:
            int64 [n], positions.
        """


class Method(Protocol):
    """An attention method.

    Attributes:
        block_size_k: tokens of a block, when queries are selected for one by one.
        prefill_block_size_k: tokens of a block, when queries are selected for in blocks of 64.
        token_pages, token_blocks: candidate pages and blocks of one query and KV head; 0 for a
            method that selects nothing.
        follows_votes: tokens of an answer attend the pages voted for, if there was a vote.
        decode_graphs: its selection is nothing but operators that a CUDA graph can hold.
        reads_quantised: it attends keys and values in 8 bits, with scales.
        reads_tiers: what it attends is fetched for it, so not all of a context need be on a device.
        own_attention: for a method that attends by itself instead of naming blocks.
    """

    name: str
    config: Any
    block_size_k: int
    prefill_block_size_k: int
    token_pages: int
    token_blocks: int
    follows_votes: bool
    decode_graphs: bool
    reads_quantised: bool
    reads_tiers: bool

    @property
    def own_attention(self) -> OwnAttention | None:
        """Attends with all queries, whatever the pass; None where the shared kernels attend."""

    @property
    def geometry(self) -> Geometry:
        """Sinks, window, dense length."""

    def reset(self) -> None:
        """Forget what the last answer selected."""

    def schedule(self) -> Schedule:
        """A new schedule for the decode steps of one answer."""

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor | None:
        """Pages for each block of 64 queries of a chunk.

        Args:
            layer: index of the layer.
            q: [T, num_heads, head_dim], un-rotated; its first query begins a block.
            window_starts: int32 [num_q_blocks], all above 0.
            step: the pass.

        Returns:
            int32 [num_q_blocks, num_kv_heads, n] in units of `prefill_block_size_k`, -1 for the
            unused tail, or None for no selection.
        """

    def select_question(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor | None:
        """Blocks for the tokens of a question, each with a list of its own.

        Args:
            layer: index of the layer.
            q: [N, num_heads, head_dim], un-rotated.
            window_starts: int32 [N], not all of them 0.
            step: the pass.

        Returns:
            int32 [N, num_kv_heads, n] in units of `block_size_k`, -1 for the unused tail, or None
            to leave the choice to exact scores of every key.
        """

    def choose_pages(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Candidate pages of single queries [N, num_heads, head_dim].

        Returns:
            int32 [N, num_kv_heads, token_pages].
        """

    def choose_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Blocks of single queries among their candidate pages.

        Returns:
            int32 [N, num_kv_heads, token_blocks] in units of `block_size_k`.
        """

    def select_unvoted(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: StepInput,
        words: tuple[int, int],
    ) -> torch.Tensor | None:
        """Blocks for each token of a question by the method alone, without a look at every key.

        Args:
            q: [T, num_heads, head_dim], un-rotated.
            window_starts: int32 [T], the last one above 0.
            words: which of the tokens are the asker's own, [start, end).

        Returns:
            int32 [T, num_kv_heads, n] in units of `block_size_k`, or None for no selection.
        """

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor | None:
        """Blocks for one decode step, kept from an earlier one where the schedule says so.

        Args:
            q: [num_heads, head_dim], un-rotated.

        Returns:
            int32 [num_kv_heads, n] in units of `block_size_k`, ascending, -1 for the unused tail,
            or None.
        """


def no_blocks(num_queries: int, step: Step) -> torch.Tensor:
    """The selection of a method that selects nothing: int32 [num_queries, num_kv_heads, 0]."""
    shape = (num_queries, step.store.layout.num_kv_heads, 0)
    return torch.empty(shape, dtype=torch.int32, device=step.store.device)


class Kernels:
    """The part of a method whose blocks are attended by the shared kernels."""

    __slots__ = ()
    prefill_block_size_k = PAGE_TOKENS
    follows_votes = False
    decode_graphs = True
    reads_quantised = True
    reads_tiers = True

    @property
    def own_attention(self) -> OwnAttention | None:
        """The shared kernels attend."""
        return None

    def reset(self) -> None:
        """Nothing to forget."""

    def schedule(self) -> Schedule:
        """Everything is chosen anew for every token."""
        return Schedule(1, 1)


class Unselective(Kernels):
    """The part of a method that selects nothing."""

    __slots__ = ()
    token_pages = 0
    token_blocks = 0

    def select_prefill(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> None:
        """No selection."""

    def select_question(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: StepInput
    ) -> torch.Tensor:
        """No selection for questions either."""
        return no_blocks(q.shape[0], step)

    def choose_pages(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Never called: there are no pages to choose."""
        raise NotImplementedError("this method selects nothing")

    def choose_blocks(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, step: Step
    ) -> torch.Tensor:
        """Never called: there are no blocks to choose."""
        raise NotImplementedError("this method selects nothing")

    def select_unvoted(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: StepInput,
        words: tuple[int, int],
    ) -> None:
        """No selection."""

    def select_token(self, layer: int, q: torch.Tensor, step: StepInput) -> None:
        """No selection."""


class Own(Unselective):
    """The part of a method that attends by itself: nobody asks it for blocks."""

    __slots__ = ()
    block_size_k = PAGE_TOKENS
    decode_graphs = False
    reads_quantised = False
    reads_tiers = False
