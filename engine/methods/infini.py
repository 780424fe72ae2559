"""Segments with local attention, and a memory of constant size for everything before them.

Inside its segment a query attends as in any Transformer, at positions counted from the segment's
start. What earlier segments held is recalled from a matrix per KV head and layer, and a trained
gate per query head mixes both. Nothing else of the past is attended, whatever its length.

Source: Infini-attention (arXiv 2404.07143). Where we differ: query heads of a group share the
memory of their KV head (the paper has a memory for each head); a memory of nothing recalls zeros.
It needs gates that were trained with the model (`engine/models/gates.py`) and is refused without;
`benchmarks/infini.py` trains a tiny model with gates. It has no budget: sinks, window and selection
are not its terms. What holds of the laws: chunks of any length and tokens one by one give the same;
dense attention it is only where no gate opens and the context is one segment.
Memories follow from keys and values alone, so they are made again from a session's pages, or after
a cut, when they are next asked for.
Cost: one matrix of head_dim x head_dim per KV head.
"""

from dataclasses import dataclass, field, replace

import torch

from hipcli.engine.errors import ModelError
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Own
from hipcli.engine.methods.compressive import Memory, mixed
from hipcli.engine.methods.configs import InfiniConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.plain import attend_packed, query_blocks, span_rows
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.cpu_common import fold_heads, unfold_heads


@dataclass(frozen=True, slots=True)
class _Past:
    """The memory of a layer's first `segments` segments."""

    memory: Memory
    segments: int = 0


@dataclass(slots=True)
class InfiniState:
    """The `Companion` of a store: a `_Past` for each layer, replaced and never changed."""

    layers: dict[int, _Past] = field(default_factory=dict)

    def copy(self) -> "InfiniState":
        """See `Companion.copy`."""
        return replace(self, layers=dict(self.layers))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing: pages tell all."""
        return {}


@dataclass(slots=True)
class InfiniAttention:
    """The attention of every pass.

    Args:
        config: settings.
        gates: [num_layers, num_heads] before the sigmoid; None until the model's are given.
    """

    config: InfiniConfig
    gates: torch.Tensor | None = None
    keeps_state: bool = False

    def resume(self, store: KVStore, tensors: dict[str, torch.Tensor]) -> None:
        """Memories are made again from the pages, when they are asked for."""

    def attended(self, layer: int, store: KVStore, position: int) -> torch.Tensor:
        """See `OwnAttention.attended`: the segment; what a memory recalls is no key."""
        start = position // self.config.segment_tokens * self.config.segment_tokens
        return torch.arange(start, position + 1, device=store.device)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """See `LayerAttention.attend`.

        Raises:
            ModelError: there are no gates.
        """
        if self.gates is None:
            raise ModelError(
                "the method infini needs gates that were trained with the model",
                "use another method; benchmarks/infini.py shows how gates are trained",
            )
        gates = self.gates[layer].to(q.device)
        size = self.config.segment_tokens
        outs = []
        for first, end in query_blocks(step.start, len(q), size):
            rows = q[first - step.start : end - step.start]
            outs.append(self._attend_part(layer, rows, step, gates, first, end))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend_part(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        gates: torch.Tensor,
        first: int,
        end: int,
    ) -> torch.Tensor:
        """Queries [first, end) of one segment."""
        segment = first // self.config.segment_tokens
        start = segment * self.config.segment_tokens
        past = self._past(layer, step.store, segment)
        step.store.check_attended(layer, None, PAGE_TOKENS, PAGE_TOKENS, start)
        k, v = span_rows(step.store, layer, start, end)
        local = attend_packed(q, k, v, step)
        recalled = past.memory.read(fold_heads(q, step.store.layout.num_kv_heads))
        return mixed(gates, unfold_heads(recalled, len(q)), local)

    def _past(self, layer: int, store: KVStore, segments: int) -> _Past:
        """The memory of the first `segments` segments of a store."""
        if not isinstance(store.companion, InfiniState):
            store.companion = InfiniState()
        layers, layout = store.companion.layers, store.layout
        past = layers.get(layer)
        if past is None or past.segments > segments:
            past = _Past(Memory.empty((layout.num_kv_heads,), layout.head_dim, store.device))
        size = self.config.segment_tokens
        if past.segments < segments:
            # From here on everything is read.
            store.check_attended(layer, None, PAGE_TOKENS, PAGE_TOKENS, past.segments * size)
        for segment in range(past.segments, segments):
            k, v = span_rows(store, layer, segment * size, (segment + 1) * size)
            memory = past.memory.updated(
                k.transpose(0, 1), v.transpose(0, 1), delta=self.config.delta_rule == 1
            )
            past = _Past(memory, segment + 1)
        layers[layer] = past
        return past


@dataclass(slots=True)
class InfiniMethod(Own):
    """See the module."""

    config: InfiniConfig = field(default_factory=InfiniConfig)
    name: str = "infini"
    own_attention: InfiniAttention = field(init=False)

    def __post_init__(self) -> None:
        self.own_attention = InfiniAttention(self.config)

    @property
    def geometry(self) -> Geometry:
        size = self.config.segment_tokens
        return Geometry(sink_tokens=0, window_tokens=size, dense_tokens=size)
