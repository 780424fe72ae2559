"""A window at true distances, and blocks of the past found by a few keys that stand for each.

Tokens that leave the window are sealed in blocks of 128. Per query head a block is represented by
the mean of the `representatives` keys in it that received the most attention while they were in
the window. A block of queries looks up the sealed blocks with its mean query, all heads together,
and every head of the layer attends the best ones. Whatever is not in a query's window, the first
tokens included, stands at one distance, that of the window's border. Local and distant keys share
one softmax.

Source: InfLLM (arXiv 2402.04617, section 3). Where we differ: blocks stay where all pages are
instead of being moved between GPU and host; queries are looked up for in blocks on a grid of
`query_block_tokens`, so that reading in longer chunks is exact. A question is its own block.
What holds of the laws: until the window is full attention is dense; chunks on the grid give the
same whatever their length. A budget that covers the context is not dense attention: distant keys
have no order. An answer's token is looked up for alone, so it differs from the same token read in
a block.
What a token received is known only while it is read. It is part of a session (`keeps_state`), and
a reading that was interrupted begins again.
Cost: one vector of every block and query head for each block of queries: 1/128 of the keys.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Own
from hipcli.engine.methods.configs import InfLLMConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.plain import page_rows, products, query_blocks, rotated, span_rows
from hipcli.engine.methods.sealed import InfLLMState, SealedBlocks
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.cpu_common import fold_heads, unfold_heads

# Queries whose scores stay in a CPU's cache.
CPU_TILE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Keys:
    """What a block of queries may attend.

    Args:
        distant: keys, values [num_kv_heads, n, head_dim], un-rotated, and their positions.
        near_k, near_v: [num_kv_heads, m, head_dim], keys rotated, of the tokens from `start` on.
        border: position up to which distant keys are there.
    """

    distant: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    near_k: torch.Tensor
    near_v: torch.Tensor
    start: int
    border: int

    def num_distant(self, border: int) -> int:
        """How many of the distant keys stand before an earlier border.

        Behind the retrieved blocks they are one run, which no window of the block reaches out of.
        """
        return max(0, len(self.distant[2]) - (self.border - border))


@dataclass(slots=True)
class InfLLMAttention:
    """The attention of every pass. What it knows of a context is the store's companion.

    Args:
        config: settings.
    """

    config: InfLLMConfig
    keeps_state: bool = True

    def resume(self, store: KVStore, tensors: dict[str, torch.Tensor]) -> None:
        """See `OwnAttention.resume`."""
        store.companion = InfLLMState.of(self.config, store, tensors)

    def attended(self, layer: int, store: KVStore, position: int) -> torch.Tensor:
        """See `OwnAttention.attended`."""
        if not isinstance(store.companion, InfLLMState):
            raise ValueError("infllm has attended nothing in this store")
        return store.companion.layers[layer].attended(position)

    def _layer(self, number: int, q: torch.Tensor, step: StepInput) -> SealedBlocks:
        """What is kept of a layer, at the position where the pass begins."""
        store = step.store
        if not isinstance(store.companion, InfLLMState):
            store.companion = InfLLMState()
        layers = store.companion.layers
        if step.start == 0:
            layers[number] = SealedBlocks.new(self.config, store, q.shape[1], q.dtype)
        layer = layers.get(number)
        if layer is None or layer.length != step.start:
            raise ValueError(
                f"infllm cannot go on at token {step.start}: it does not know how much attention"
                " the tokens before it received; read the context with it, or rewind to its tail"
            )
        return layer

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """See `LayerAttention.attend`."""
        kept, outs = self._layer(layer, q, step), []
        blocks = query_blocks(step.start, q.shape[0], self.config.query_block_tokens)
        for first, end in blocks:
            rows = q[first - step.start : end - step.start]
            outs.append(self._attend_block(layer, rows, step, kept, first))
            kept.seal(layer, step.store, end)
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend_block(
        self, number: int, q: torch.Tensor, step: StepInput, kept: SealedBlocks, first: int
    ) -> torch.Tensor:
        """Queries [first, first + T), which look up together."""
        window, end = self.config.window_tokens, first + len(q)
        position = torch.arange(first, end, device=q.device)
        far_q = rotated(q, torch.full_like(position, window - 1), window, step)
        start = max(0, first - window + 1)
        near_k, near_v = span_rows(step.store, number, start, end)
        at = torch.arange(start, end, device=q.device)
        near_k = rotated(near_k.contiguous(), at - start, end - start, step)
        keys = _Keys(
            self._distant(number, kept.best(far_q), step, kept, end),
            near_k.transpose(0, 1).contiguous(),
            near_v.transpose(0, 1).contiguous(),
            start,
            end - window,
        )
        near_q = rotated(q, position - start, end - start, step)
        tile = CPU_TILE_TOKENS if q.device.type == "cpu" else len(q)
        outs = []
        for low in range(0, len(q), tile):
            rows = (far_q[low : low + tile], near_q[low : low + tile])
            outs.append(self._attend_tile(rows, keys, step, kept, first + low))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend_tile(
        self,
        queries: tuple[torch.Tensor, torch.Tensor],
        keys: "_Keys",
        step: StepInput,
        kept: SealedBlocks,
        first: int,
    ) -> torch.Tensor:
        """Queries [first, first + T), turned for distant and for near keys: one softmax."""
        far_q, near_q = queries
        window, heads = self.config.window_tokens, step.store.layout.num_kv_heads
        tokens, device = len(far_q), far_q.device
        end = first + tokens
        far_k, far_v, far_at = keys.distant
        num_far = keys.num_distant(end - window)
        near_start = max(0, first - window + 1)
        near = slice(near_start - keys.start, end - keys.start)
        num_near = end - near_start
        rows = fold_heads(far_q, heads), fold_heads(near_q, heads)
        logits = torch.empty(*rows[0].shape[:2], num_far + num_near, device=device)
        logits[..., :num_far] = products(rows[0], far_k[:, :num_far])
        logits[..., num_far:] = products(rows[1], keys.near_k[:, near])
        near_at = torch.arange(near_start, end, device=device)
        position = torch.arange(first, end, device=device)[:, None]
        near_distance = position - near_at
        hidden = torch.cat(
            (
                position - far_at[:num_far] < window,
                (near_distance < 0) | (near_distance >= window),
            ),
            1,
        )
        shaped = logits.mul_(step.softmax_scale).unflatten(1, (-1, tokens))
        weights = shaped.masked_fill_(hidden, -torch.inf).softmax(-1)
        received = weights[..., num_far:].sum(2).flatten(0, 1)
        kept.receive(received, near_start, end)
        values = torch.cat((far_v[:, :num_far], keys.near_v[:, near]), 1)
        out = torch.bmm(weights.flatten(1, 2).to(values.dtype), values)
        return unfold_heads(out, tokens)

    def _distant(
        self, number: int, chosen: torch.Tensor, step: StepInput, kept: SealedBlocks, end: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values [num_kv_heads, n, head_dim] and positions, ascending, of what may be out of
        the window: first tokens, retrieved blocks, tokens that are not sealed yet."""
        config, store, device = self.config, step.store, chosen.device
        border = max(0, end - config.window_tokens)
        open_start = kept.open_start
        sinks, loose = min(border, config.sink_tokens), max(border, open_start)
        inside = torch.arange(config.block_tokens // PAGE_TOKENS, device=device)
        first_page = config.sink_tokens // PAGE_TOKENS
        pages = (first_page + chosen[:, None] * len(inside) + inside).flatten()
        store.check_attended(number, pages, PAGE_TOKENS, config.sink_tokens, open_start)
        parts = (
            span_rows(store, number, 0, sinks),
            page_rows(store, number, pages),
            span_rows(store, number, open_start, loose),
        )
        k, v = (torch.cat(rows).transpose(0, 1).contiguous() for rows in zip(*parts, strict=True))
        tokens = pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS, device=device)
        at = (
            torch.arange(sinks, device=device),
            tokens.flatten(),
            torch.arange(open_start, loose, device=device),
        )
        return k, v, torch.cat(at)


@dataclass(slots=True)
class InfLLMMethod(Own):
    """See the module."""

    config: InfLLMConfig = field(default_factory=InfLLMConfig)
    name: str = "infllm"
    own_attention: InfLLMAttention = field(init=False)

    def __post_init__(self) -> None:
        self.own_attention = InfLLMAttention(self.config)

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.config.sink_tokens, self.config.window_tokens, dense_tokens=0)
