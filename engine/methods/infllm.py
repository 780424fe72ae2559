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

from dataclasses import dataclass, field, replace

import torch

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.methods.base import Geometry, Own
from hipcli.engine.methods.configs import InfLLMConfig
from hipcli.engine.methods.plain import page_rows, products, query_blocks, rotated, span_rows
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.cpu_common import fold_heads, unfold_heads


@dataclass(slots=True)
class _Layer:
    """What a layer keeps.

    Args:
        representatives: [room, num_heads, head_dim], of which the first `sealed` rows are used;
            they never change, so copies share them.
        received: fp32 [num_heads, n], attention received by each token since the last sealed one.
        sealed: blocks.
        length: tokens seen.
    """

    representatives: torch.Tensor
    received: torch.Tensor
    sealed: int = 0
    length: int = 0


@dataclass(slots=True)
class InfLLMState:
    """The `Companion` of a store that InfLLM reads: a `_Layer` for each layer seen."""

    layers: dict[int, _Layer] = field(default_factory=dict)

    def copy(self) -> "InfLLMState":
        """See `Companion.copy`."""
        # `received` is replaced and never written to.
        return InfLLMState({number: replace(layer) for number, layer in self.layers.items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Companion.tensors`."""
        found = {}
        for number, layer in self.layers.items():
            found[f"{number}.representatives"] = layer.representatives[: layer.sealed]
            found[f"{number}.received"] = layer.received
            found[f"{number}.length"] = torch.tensor([layer.length])
        return found


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
        state = InfLLMState()
        try:
            for number in range(store.layout.num_layers):
                saved = tensors[f"{number}.representatives"].to(store.device)
                layer = self._new_layer(store, saved.shape[1], saved.dtype)
                layer.sealed, layer.length = len(saved), int(tensors[f"{number}.length"])
                layer.representatives[: layer.sealed] = saved
                layer.received = tensors[f"{number}.received"].to(store.device)
                state.layers[number] = layer
        except (KeyError, IndexError, RuntimeError) as error:
            raise DamagedSessionError(f"its representatives are damaged: {error}") from None
        if any(layer.length != store.length for layer in state.layers.values()):
            raise DamagedSessionError("its representatives are those of another length")
        store.companion = state

    def _new_layer(self, store: KVStore, num_heads: int, dtype: torch.dtype) -> _Layer:
        room = store.capacity_tokens // self.config.block_tokens
        shape = (room, num_heads, store.layout.head_dim)
        return _Layer(
            torch.empty(shape, dtype=dtype, device=store.device),
            torch.zeros(num_heads, 0, device=store.device),
        )

    def _layer(self, number: int, q: torch.Tensor, step: StepInput) -> _Layer:
        """What is kept of a layer, at the position where the pass begins."""
        store = step.store
        if not isinstance(store.companion, InfLLMState):
            store.companion = InfLLMState()
        layers = store.companion.layers
        if step.start == 0:
            layers[number] = self._new_layer(store, q.shape[1], q.dtype)
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
            self._seal(layer, step.store, kept, end)
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _open_start(self, kept: _Layer) -> int:
        """First token behind the sealed blocks."""
        return self.config.sink_tokens + kept.sealed * self.config.block_tokens

    def _attend_block(
        self, number: int, q: torch.Tensor, step: StepInput, kept: _Layer, first: int
    ) -> torch.Tensor:
        """Queries [first, first + T): local and distant keys in one softmax."""
        store, window = step.store, self.config.window_tokens
        tokens, num_heads, _ = q.shape
        heads, end = store.layout.num_kv_heads, first + tokens
        position = torch.arange(first, end, device=q.device)
        local_start = max(0, first - window + 1)
        far_q = rotated(q, torch.full_like(position, window - 1), window, step)
        far_k, far_v, far_at = self._distant(number, far_q, step, kept, end)
        near_k, near_v = span_rows(store, number, local_start, end)
        near_at = torch.arange(local_start, end, device=q.device)
        last = end - local_start
        near_k = rotated(near_k.contiguous(), near_at - local_start, last, step)
        near_q = rotated(q, position - local_start, last, step)
        logits = torch.cat(
            (
                products(fold_heads(far_q, heads), far_k.transpose(0, 1)),
                products(fold_heads(near_q, heads), near_k.transpose(0, 1)),
            ),
            -1,
        )
        distance = position[:, None] - torch.cat((far_at, near_at))
        is_far = torch.arange(distance.shape[1], device=q.device) < len(far_at)
        hidden = torch.where(is_far, distance < window, (distance < 0) | (distance >= window))
        shaped = logits.mul_(step.softmax_scale).unflatten(1, (-1, tokens))
        weights = shaped.masked_fill_(hidden, -torch.inf).softmax(-1)
        received = weights[..., len(far_at) :].sum(2).flatten(0, 1)
        self._receive(kept, received, local_start, end)
        values = torch.cat((far_v, near_v)).transpose(0, 1)
        out = torch.bmm(weights.flatten(1, 2).to(values.dtype), values)
        return unfold_heads(out, tokens)

    def _distant(
        self, number: int, far_q: torch.Tensor, step: StepInput, kept: _Layer, end: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values [n, num_kv_heads, head_dim] and positions of what may be out of the window:
        retrieved blocks, first tokens, tokens that are not sealed yet."""
        config, store, device = self.config, step.store, far_q.device
        border = max(0, end - config.window_tokens)
        open_start = self._open_start(kept)
        chosen = self._retrieve(far_q, kept)
        per_block = config.block_tokens // PAGE_TOKENS
        first_page = config.sink_tokens // PAGE_TOKENS
        inside = torch.arange(per_block, device=device)
        pages = (first_page + chosen[:, None] * per_block + inside).flatten()
        sinks = min(border, config.sink_tokens)
        loose = max(border, open_start)
        store.check_attended(number, pages, PAGE_TOKENS, config.sink_tokens, open_start)
        parts = [
            page_rows(store, number, pages),
            span_rows(store, number, 0, sinks),
            span_rows(store, number, open_start, loose),
        ]
        at = torch.cat(
            (
                (pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS, device=device)).flatten(),
                torch.arange(sinks, device=device),
                torch.arange(open_start, loose, device=device),
            )
        )
        return torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts]), at

    def _retrieve(self, far_q: torch.Tensor, kept: _Layer) -> torch.Tensor:
        """The sealed blocks that all heads together want most, int64 ascending."""
        count = self.config.budget_tokens // self.config.block_tokens
        if kept.sealed <= count:
            return torch.arange(kept.sealed, device=far_q.device)
        query = far_q.float().mean(0).flatten()
        scores = kept.representatives[: kept.sealed].flatten(1).float() @ query
        return scores.topk(count).indices.sort().values

    def _receive(self, kept: _Layer, received: torch.Tensor, start: int, end: int) -> None:
        """Count attention [num_heads, end - start] received by tokens [start, end)."""
        open_start = self._open_start(kept)
        total = received.new_zeros(received.shape[0], max(0, end - open_start))
        total[:, : kept.received.shape[1]] = kept.received
        first = max(start, open_start)
        if first < end:
            total[:, first - open_start :] += received[:, first - start :]
        kept.received = total

    def _seal(self, number: int, store: KVStore, kept: _Layer, end: int) -> None:
        """Seal blocks whose tokens have left the window of the query at `end`."""
        config = self.config
        kept.length = end
        while self._open_start(kept) + config.block_tokens <= end - config.window_tokens:
            start = self._open_start(kept)
            keys, _ = span_rows(store, number, start, start + config.block_tokens)
            scores = kept.received[:, : config.block_tokens]
            best = scores.topk(config.representatives).indices
            group = best.shape[0] // keys.shape[1]
            kv_head = torch.arange(best.shape[0], device=best.device) // group
            means = keys[best, kv_head[:, None]].float().mean(1)
            kept.representatives[kept.sealed] = means.to(kept.representatives.dtype)
            kept.received = kept.received[:, config.block_tokens :]
            kept.sealed += 1


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
