"""What one forward pass needs to know, handed through the model to the attention of each layer."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hipcli.engine.forward.rope import RopeTables
from hipcli.engine.store.pages import KVStore


class KeysWritten(Exception):
    """The rest of the pass would compute hidden states that nobody reads."""


class Step(Protocol):
    """What selecting needs of any forward pass."""

    @property
    def store(self) -> KVStore:
        """Keys and values."""

    @property
    def tables(self) -> RopeTables:
        """The model's RoPE tables."""

    @property
    def softmax_scale(self) -> float:
        """Factor of q.k."""


class LayerAttention(Protocol):
    """The attention of one forward pass; a method or an answering mode supplies it."""

    def attend(self, layer: int, q: torch.Tensor, step: "StepInput") -> torch.Tensor:
        """Attend with the queries of one layer, whose keys and values are in the store already.

        Args:
            layer: index of the layer.
            q: [T, num_heads, head_dim], un-rotated.
            step: this pass.

        Returns:
            [T, num_heads, head_dim].
        """


class PassAttention(LayerAttention, Protocol):
    """The attention of one pass of tokens."""

    @property
    def method(self) -> Any:
        """Whose sinks and window the queries attend, a `Method`."""


@dataclass(slots=True)
class StepInput:
    """State of one forward pass.

    Args:
        store: keys and values; the pass appends to it.
        tables: the model's RoPE tables.
        attention: which keys the queries attend.
        start: position of the first token of the pass.
        softmax_scale: factor of q.k, filled in by the model's attention module.
        keys_only: nobody reads what the last layer puts out.
        written: keys and values, [T, num_kv_heads, head_dim] each, that were stored last: those of
            the layer that is attended.
        joined: queries, keys and values of that layer in one tensor, [T, all heads, head_dim],
            where they are computed so. Whoever attends with it may overwrite it.
        kept_from: of a tiered store, first token that stands on the device without being fetched,
            besides the sinks; 0 for all of them.
    """

    store: KVStore
    tables: RopeTables
    attention: PassAttention
    start: int
    softmax_scale: float = 1.0
    keys_only: bool = False
    written: tuple[torch.Tensor, torch.Tensor] | None = None
    joined: torch.Tensor | None = None
    kept_from: int = 0

    def reserve(self, tokens: int) -> None:
        """Make room for the keys and values of the pass in a tiered store."""
        geometry, end = self.attention.method.geometry, self.start + tokens
        self.kept_from = geometry.kept_from(self.start, end, self.store.device_pages)
        self.store.reserve(self.start, end, self.kept_from, geometry.sink_tokens)

    @property
    def fetches(self) -> bool:
        """What is attended has to be fetched first."""
        return self.store.tiered and self.kept_from > 0

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the keys and values of this pass's tokens, [T, num_kv_heads, head_dim]."""
        self.store.append(layer, self.start, k, v)
        self.store.written_through(layer, self.start, self.start + len(k))
        self.written = (k, v)

    def append_joined(self, layer: int, joined: torch.Tensor) -> None:
        """Store the keys and values of `joined`, see there."""
        store, heads = self.store, self.store.layout.num_kv_heads
        few = joined[:, -2 * heads :].unflatten(1, (2, heads))
        if store.fits_page(self.start, joined.shape[0]):
            store.append_within_page(layer, self.start, few)
        else:
            store.append(layer, self.start, few[:, 0], few[:, 1])
            store.written_through(layer, self.start, self.start + len(few))
        self.joined = joined

    def end_where_written(self, layer: int) -> None:
        """For an attention that leaves nothing behind but its output.

        Raises:
            KeysWritten: `keys_only`, and this is the last layer, whose keys are in the store.
        """
        if self.keys_only and layer == self.store.layout.num_layers - 1:
            raise KeysWritten
