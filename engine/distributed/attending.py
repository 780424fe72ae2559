"""Attention over the pages of all ranks: partial results of each rank, merged in fp32."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from hipcli.engine.distributed.group import Group, as_bytes, from_bytes
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.forward.rope import RopeTables
from hipcli.engine.forward.step import KeysWritten
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.types import SparsePlan

if TYPE_CHECKING:
    from hipcli.engine.distributed.passes import ShardAttention

QUERIES, PARTIALS = "queries", "partials"


@dataclass(slots=True)
class ShardStep:
    """State of one forward pass on one rank; what `StepInput` is to a whole store.

    Args:
        group: all ranks.
        store: this rank's pages.
        tables: the model's RoPE tables.
        attention: of the pass.
        start: position of the pass's first token, on whichever rank.
        tokens: how many tokens pass, on all ranks together.
        softmax_scale: factor of q.k; a rank without tokens of its own is not told by the model.
        apart: every rank runs the tokens of its own pages; False runs all of them on every rank.
        keys_only: nobody reads what the last layer puts out.
        new_keys: the keys of the pass, [T, num_kv_heads, head_dim], of the layer at work.
    """

    group: Group
    store: ShardStore
    tables: RopeTables
    attention: "ShardAttention"
    start: int
    tokens: int
    softmax_scale: float
    apart: bool
    keys_only: bool = False
    new_keys: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    _places: list[torch.Tensor] | None = None

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.tokens

    def places(self) -> list[torch.Tensor]:
        """Per rank which of the pass's tokens are on its pages, int64 on the device; the same for
        all layers, which wait for no copy then."""
        if self._places is None:
            found = self.store.placement.tokens(self.start, self.end)
            self._places = [place.to(self.store.device) for place in found]
        return self._places

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values of this rank's tokens, [T, num_kv_heads, head_dim]."""
        if self.apart:
            self.store.append_own(layer, self.start, self.end, k, v)
            return
        self.new_keys = k
        self.store.append(layer, self.start, k, v)

    def append_joined(self, layer: int, joined: torch.Tensor) -> None:
        """`append` of queries, keys and values in one, [T, all heads, head_dim]."""
        heads = self.store.layout.num_kv_heads
        self.append(layer, joined[:, -2 * heads : -heads], joined[:, -heads:])

    def end_where_written(self, layer: int) -> None:
        """As `StepInput.end_where_written`."""
        if self.keys_only and layer == self.store.layout.num_layers - 1:
            raise KeysWritten


def attend_here(
    layer: int, q: torch.Tensor, step: ShardStep, plan: SparsePlan, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What queries up to position `end` find on this rank's pages.

    Returns:
        out [T, num_heads, head_dim] and lse fp32 [T, num_heads].
    """
    store = step.store
    return shard_attention(
        q,
        store.kv[layer],
        plan,
        step.tables.first(plan.local_tokens + q.shape[0]),
        store.seqlen_k(end),
        step.softmax_scale,
        backend=store.backend,
    )


def token_plan(
    step: ShardStep, blocks: torch.Tensor, starts: torch.Tensor, geometry: Geometry, size: int
) -> SparsePlan:
    """The plan of tokens one by one.

    Args:
        blocks: int32 [T, num_kv_heads, n] in units of `size` tokens.
        starts: int32 [T], of their windows.
    """
    near = geometry.sink_tokens + geometry.window_tokens + PAGE_TOKENS + step.tokens
    dense = step.end if geometry.window_start(step.start) == 0 else 0
    local_tokens = max(near + blocks.shape[2] * size, dense)
    return SparsePlan(blocks, starts, 1, size, geometry.sink_tokens, local_tokens)


def attend_alike(
    layer: int,
    q: torch.Tensor,
    step: ShardStep,
    plan: tuple[torch.Tensor, torch.Tensor],
    method: Method,
    block_size_k: int,
) -> torch.Tensor:
    """Attend with tokens that all ranks run alike: one exchange, and all merge it.

    Args:
        layer: which layer.
        q: [T, num_heads, head_dim], un-rotated, the same on all ranks.
        step: the pass.
        plan: block_indices int32 [T, num_kv_heads, n] and window_starts int32 [T].
        method: sinks and window.
        block_size_k: tokens of a block.

    Returns:
        [T, num_heads, head_dim].
    """
    blocks, starts = plan
    geometry = method.geometry
    first = geometry.window_start(step.start)
    step.store.check_attended(layer, blocks, block_size_k, geometry.sink_tokens, first)
    planned = token_plan(step, blocks, starts, geometry, block_size_k)
    out, lse = attend_here(layer, q, step, planned, step.end)
    raw = torch.cat((as_bytes(out), as_bytes(lse)))
    parts = step.group.gather(raw, PARTIALS)
    return _merged(list(parts), q)


def gather_queries(q: torch.Tensor, step: ShardStep) -> torch.Tensor:
    """Queries of all tokens of a pass, in order, from those of this rank's tokens."""
    group, places = step.group, step.places()
    row_bytes = q.shape[1] * q.shape[2] * q.element_size()
    sizes = [len(place) * row_bytes for place in places]
    received = group.exchange([as_bytes(q)] * group.size, sizes, QUERIES)
    everyone = q.new_empty(step.tokens, *q.shape[1:])
    for place, raw in zip(places, received, strict=True):
        everyone[place] = from_bytes(raw, q.dtype, (len(place), *q.shape[1:]))
    return everyone


def return_partials(
    out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, step: ShardStep
) -> torch.Tensor:
    """Send what was found for each query to the rank that runs its token, and merge what comes.

    Args:
        out, lse: of all tokens of the pass, over this rank's pages.
        q: this rank's own queries, [T, num_heads, head_dim].

    Returns:
        [T, num_heads, head_dim].
    """
    parts = [torch.cat((as_bytes(out[at]), as_bytes(lse[at]))) for at in step.places()]
    size = len(parts[step.group.rank])
    return _merged(step.group.exchange(parts, [size] * len(parts), PARTIALS), q)


def _merged(parts: list[torch.Tensor], q: torch.Tensor) -> torch.Tensor:
    """The attention of queries like `q` from the bytes of (out, lse) of every rank."""
    if not len(q):
        return torch.empty_like(q)
    num_bytes = q.numel() * q.element_size()
    outs, lses = [], []
    for raw in parts:
        outs.append(from_bytes(raw[:num_bytes], q.dtype, q.shape))
        lses.append(from_bytes(raw[num_bytes:], torch.float32, q.shape[:2]))
    out, _ = merge_partials(torch.stack(outs), torch.stack(lses), q.dtype)
    return out
