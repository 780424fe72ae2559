"""What the keys that a method attends hold of the true attention: its mass, and its best keys."""

from dataclasses import dataclass, field
from typing import Any

import torch

from hipcli.engine.forward.step import LayerAttention, StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.rope import rope

# The keys between sinks and window that a query scores highest: are they attended?
TOP_KEYS = 64


@dataclass(slots=True)
class Capture:
    """Sums over queries of what the attended keys hold of the true attention, for one layer."""

    queries: int = 0
    mass: float = 0.0
    recall_queries: int = 0
    recall: float = 0.0

    def report(self) -> dict[str, float | None]:
        """Means over queries and heads."""
        return {
            "mass": self.mass / self.queries if self.queries else None,
            "top_keys": self.recall / self.recall_queries if self.recall_queries else None,
        }


class Recorded:
    """A method that remembers which pages it selected last."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.selected: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def select_prefill(self, *arguments: Any) -> torch.Tensor | None:
        self.selected = self._method.select_prefill(*arguments)
        return self.selected


@dataclass(slots=True)
class Watch:
    """The attention of a reading pass, and a look at the last query of each."""

    method: Any
    inner: LayerAttention
    captures: dict[int, Capture] = field(default_factory=dict)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """See `LayerAttention.attend`."""
        out = self.inner.attend(layer, q, step)
        position = step.start + q.shape[0] - 1
        if self.method.geometry.window_start(position) > 0:
            capture = self.captures.setdefault(layer, Capture())
            scores = true_scores(layer, q[-1:], step, position)
            kept = self._kept(layer, position, step.store)
            self._count(capture, scores, kept, position)
        return out

    def _kept(self, layer: int, position: int, store: KVStore) -> torch.Tensor:
        """Which keys the last query attended: bool [num_kv_heads, position + 1]."""
        method = self.method
        if method.own_attention is None:
            return attended(
                method.geometry, method.selected, position, store, method.prefill_block_size_k
            )
        shape = (store.layout.num_kv_heads, position + 1)
        kept = torch.zeros(shape, dtype=torch.bool, device=store.device)
        kept[:, method.own_attention.attended(layer, store, position)] = True
        return kept

    def _count(
        self, capture: Capture, scores: torch.Tensor, kept: torch.Tensor, position: int
    ) -> None:
        """Scores fp32 [num_kv_heads, group, keys], kept bool [num_kv_heads, keys]."""
        kept = kept.unsqueeze(1).expand_as(scores)
        capture.queries += 1
        capture.mass += float((scores.softmax(-1) * kept).sum(-1).mean())
        geometry: Geometry = self.method.geometry
        first, last = geometry.sink_tokens, geometry.window_start(position)
        if last - first > TOP_KEYS:
            best = scores[..., first:last].topk(TOP_KEYS).indices + first
            capture.recall_queries += 1
            capture.recall += float(kept.gather(-1, best).float().mean())


def true_scores(layer: int, q: torch.Tensor, step: StepInput, position: int) -> torch.Tensor:
    """Scores of one query at its true position: fp32 [num_kv_heads, group, position + 1].

    Args:
        q: [1, num_heads, head_dim], un-rotated.
    """
    store, end = step.store, position + 1
    tables = step.tables.first(end)
    keys, _ = store.tokens(layer, end)
    positions = torch.arange(end, device=q.device)
    keys = rope(keys, positions, tables, backend=store.backend).float()
    query = rope(q, positions[position:], tables, backend=store.backend).float()
    query = query[0].unflatten(0, (keys.shape[1], -1))
    return torch.einsum("hgd,thd->hgt", query, keys) * step.softmax_scale


def attended(
    geometry: Geometry,
    selected: torch.Tensor | None,
    position: int,
    store: KVStore,
    block_size_k: int = PAGE_TOKENS,
) -> torch.Tensor:
    """Which keys a query attends: bool [num_kv_heads, position + 1].

    Args:
        selected: blocks of the last query block, int32 [num_q_blocks, num_kv_heads, n], or None.
        block_size_k: tokens of a block.
    """
    heads = store.layout.num_kv_heads
    kept = torch.zeros(heads, position + 1, dtype=torch.bool, device=store.device)
    kept[:, : geometry.sink_tokens] = True
    kept[:, geometry.window_start(position) :] = True
    if selected is not None:
        block = torch.arange(position + 1, device=store.device) // block_size_k
        blocks = torch.zeros(heads, int(block[-1]) + 2, dtype=torch.bool, device=store.device)
        # Unused places are -1: they mark the last block, which no key is in.
        blocks.scatter_(1, selected[-1].long() % blocks.shape[1], True)
        kept |= blocks[:, block]
    return kept
