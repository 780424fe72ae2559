"""One step of an answer on a device: its state, and the attention of its layers.

Everything lives in tensors whose addresses never change, so a CUDA graph can hold the step.
"""

from dataclasses import dataclass, replace

import torch

from hipcli.engine.answering.phases import Phase
from hipcli.engine.forward.rope import RopeTables
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.passes import AnswerPass
from hipcli.engine.passes.given import GivenBlocks, beyond_window
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.types import SparsePlan


@dataclass(slots=True)
class DecodeStep:
    """State of one decode step, in tensors whose addresses never change; a `StepInput` otherwise.

    Args:
        store: keys and values.
        tables: the model's RoPE tables.
        attention: the `DecodePass`.
        position: int64 [1], of the step's token.
        seqlen_k: int32 [1], tokens with it.
        window_starts: int32 [1], first token of its window.
        rows: int64 [2 * num_kv_heads], where its keys and values go (`KVStore.rows_of`).
        softmax_scale: filled in by the model's attention module.
    """

    store: KVStore
    tables: RopeTables
    attention: "DecodePass"
    position: torch.Tensor
    seqlen_k: torch.Tensor
    window_starts: torch.Tensor
    rows: torch.Tensor
    softmax_scale: float = 1.0

    def begin(self) -> None:
        """Derive everything from `position`, on the device."""
        self.seqlen_k.copy_(self.position + 1)
        geometry = self.attention.answer.method.geometry
        self.window_starts.copy_(geometry.window_starts_at(self.position))
        self.rows.copy_(self.store.rows_of(self.position))

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put keys and values of the step's token, [1, num_kv_heads, head_dim], in the store."""
        self.store.append_at(layer, self.rows, self.seqlen_k, k, v)


class DecodePass:
    """The attention of decode steps: blocks of every layer in buffers that a step may refresh.

    Args:
        answer: given pages, or the method that selects.
        store: keys and values.
        local_tokens: most keys a step attends.
        staggered: each layer has a window of its own, which moves when the layer chooses pages.

    Attributes:
        phase: what the next step does.
    """

    def __init__(
        self,
        answer: AnswerPass,
        store: KVStore,
        local_tokens: int,
        *,
        staggered: bool = False,
    ) -> None:
        self.answer = answer
        self.phase = Phase("keep", ("keep",) * store.layout.num_layers)
        self._local_tokens = local_tokens
        method, num_kv_heads = answer.method, store.layout.num_kv_heads
        self.selects = selects(answer)
        self._keys_first = self.selects and _keys_first(answer.method, store)
        self._pages: list[torch.Tensor] = []
        self._blocks: list[torch.Tensor] = []
        self._given: GivenBlocks | None = None
        self._window_starts: list[torch.Tensor] = []
        if answer.given is not None:
            geometry = method.geometry
            start = geometry.first_window_start(store.length)
            given = replace(answer.given, pages=answer.given.pages.to(store.device))
            self._given = GivenBlocks(given, start, geometry.sink_tokens, num_kv_heads)
        elif self.selects:
            for _ in range(store.layout.num_layers):
                self._pages.append(_no_plan(num_kv_heads, method.token_pages, store))
                self._blocks.append(_no_plan(num_kv_heads, method.token_blocks, store))
                if staggered:
                    self._window_starts.append(store.filled(0))

    def begin(self, step: DecodeStep) -> None:
        """Arrange given pages for the window at hand."""
        if self._given is not None:
            self._given.begin(step.window_starts)

    def attend(self, layer: int, q: torch.Tensor, step: DecodeStep) -> torch.Tensor:
        """See `LayerAttention.attend`; q has one token."""
        store, method = step.store, self.answer.method
        what = self.phase.layers[layer]
        if self.selects and what == "pages":
            self._choose_pages(layer, q, step)
        elif self._given is not None and what == "pages" and store.tiered:
            store.fetch(layer, beyond_window(self._given.blocks, step.window_starts))
        if self.selects and what != "keep":
            chosen = method.choose_blocks(layer, q, self._pages[layer], step)
            self._blocks[layer].copy_(chosen)
            if self._keys_first:
                store.fetch_values(layer, chosen, method.block_size_k)
        plan = SparsePlan(
            self._layer_blocks(layer, step),
            self._starts(layer, step),
            1,
            self.answer.block_size_k,
            method.geometry.sink_tokens,
            self._local_tokens,
        )
        return sparse_decode(
            q,
            store.kv[layer],
            plan,
            step.tables.first(self._local_tokens),
            step.seqlen_k,
            step.softmax_scale,
            backend=store.backend,
        )[0]

    def _choose_pages(self, layer: int, q: torch.Tensor, step: DecodeStep) -> None:
        """Candidates of a layer, and their keys on the device, with their values or without."""
        store, pages = step.store, self._pages[layer]
        if self._window_starts:
            self._window_starts[layer].copy_(step.window_starts)
        else:
            store.summarise(layer, step.seqlen_k, PAGE_TOKENS)
        pages.copy_(self.answer.method.choose_pages(layer, q, step.window_starts, step))
        if store.tiered:
            store.fetch(layer, pages, keys_only=self._keys_first)

    def _starts(self, layer: int, step: DecodeStep) -> torch.Tensor:
        if self._given is not None:
            return self._given.near_starts
        return self._window_starts[layer] if self._window_starts else step.window_starts

    def _layer_blocks(self, layer: int, step: DecodeStep) -> torch.Tensor:
        if self._given is not None:
            return self._given.blocks
        return self._blocks[layer] if self.selects else no_blocks(1, step)


def selects(attention: AnswerPass) -> bool:
    """The method selects for each token."""
    return attention.pages is None and attention.method.token_blocks > 0


def _keys_first(method: Method, store: KVStore) -> bool:
    """Candidates come with their keys alone, and values when their blocks are chosen: which is at
    some steps that choose no pages, so a graph must hold it."""
    chosen = method.token_blocks * method.block_size_k
    fewer = chosen < method.token_pages * PAGE_TOKENS
    return fewer and store.tiered and store.fetches_in_graphs


def _no_plan(num_kv_heads: int, count: int, store: KVStore) -> torch.Tensor:
    """A buffer of pages or blocks of one query, none chosen: int32 [1, num_kv_heads, count]."""
    return torch.full((1, num_kv_heads, count), -1, dtype=torch.int32, device=store.device)
