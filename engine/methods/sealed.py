"""What InfLLM keeps of each layer: vectors of sealed blocks, and what tokens received so far."""

from dataclasses import dataclass, field, replace

import torch

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.methods.configs import InfLLMConfig
from hipcli.engine.methods.plain import span_rows
from hipcli.engine.store.pages import KVStore


@dataclass(slots=True)
class SealedBlocks:
    """The blocks of one layer.

    Args:
        config: settings.
        representatives: [room, num_heads, head_dim], of which the first `sealed` rows are used;
            they never change, so copies share them.
        received: fp32 [num_heads, n], attention received by each token since the last sealed one;
            replaced and never written to.
        sealed: blocks.
        length: tokens seen.
        chosen, chosen_start: blocks that the last queries retrieved, and `open_start` then.
    """

    config: InfLLMConfig
    representatives: torch.Tensor
    received: torch.Tensor
    sealed: int = 0
    length: int = 0
    chosen: torch.Tensor | None = None
    chosen_start: int = 0

    @classmethod
    def new(
        cls, config: InfLLMConfig, store: KVStore, num_heads: int, dtype: torch.dtype
    ) -> "SealedBlocks":
        """No block yet, and room for all that the store can hold."""
        shape = (store.capacity_tokens // config.block_tokens, num_heads, store.layout.head_dim)
        representatives = torch.empty(shape, dtype=dtype, device=store.device)
        return cls(config, representatives, torch.zeros(num_heads, 0, device=store.device))

    @property
    def open_start(self) -> int:
        """First token behind the sealed blocks."""
        return self.config.sink_tokens + self.sealed * self.config.block_tokens

    def best(self, q: torch.Tensor) -> torch.Tensor:
        """The sealed blocks that the mean query of all heads together wants, int64 ascending.

        Args:
            q: [T, num_heads, head_dim], rotated to the border of the window.
        """
        count = self.config.budget_tokens // self.config.block_tokens
        if self.sealed <= count:
            self.chosen = torch.arange(self.sealed, device=q.device)
        else:
            query = q.float().mean(0).flatten()
            scores = self.representatives[: self.sealed].flatten(1).float() @ query
            self.chosen = scores.topk(count).indices.sort().values
        self.chosen_start = self.open_start
        return self.chosen

    def attended(self, position: int) -> torch.Tensor:
        """Positions of what the query at `position`, the last one, attended, int64."""
        config, device = self.config, self.received.device
        chosen = torch.empty(0, device=device) if self.chosen is None else self.chosen
        first = config.sink_tokens + chosen.long() * config.block_tokens
        tokens = first[:, None] + torch.arange(config.block_tokens, device=device)
        sinks = torch.arange(min(config.sink_tokens, position + 1), device=device)
        rest = torch.arange(min(self.chosen_start, position + 1), position + 1, device=device)
        return torch.cat((sinks, tokens.flatten(), rest))

    def receive(self, received: torch.Tensor, start: int, end: int) -> None:
        """Count attention [num_heads, end - start] received by tokens [start, end)."""
        open_start = self.open_start
        total = received.new_zeros(received.shape[0], max(0, end - open_start))
        total[:, : self.received.shape[1]] = self.received
        first = max(start, open_start)
        if first < end:
            total[:, first - open_start :] += received[:, first - start :]
        self.received = total

    def seal(self, layer: int, store: KVStore, end: int) -> None:
        """Seal the blocks whose tokens have left the window of the query at `end`."""
        size, self.length = self.config.block_tokens, end
        while self.open_start + size <= end - self.config.window_tokens:
            keys, _ = span_rows(store, layer, self.open_start, self.open_start + size)
            best = self.received[:, :size].topk(self.config.representatives).indices
            kv_head = torch.arange(len(best), device=best.device) // (len(best) // keys.shape[1])
            means = keys[best, kv_head[:, None]].float().mean(1)
            self.representatives[self.sealed] = means.to(self.representatives.dtype)
            self.received = self.received[:, size:]
            self.sealed += 1


@dataclass(slots=True)
class InfLLMState:
    """The `Companion` of a store that InfLLM reads: the blocks of each layer seen."""

    layers: dict[int, SealedBlocks] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: InfLLMConfig, store: KVStore, tensors: dict[str, torch.Tensor]
    ) -> "InfLLMState":
        """What `tensors` gave, for a store that holds the whole context.

        Raises:
            DamagedSessionError: they do not belong to it.
        """
        state = cls()
        try:
            for number in range(store.layout.num_layers):
                saved = tensors[f"{number}.representatives"].to(store.device)
                blocks = SealedBlocks.new(config, store, saved.shape[1], saved.dtype)
                blocks.sealed, blocks.length = len(saved), int(tensors[f"{number}.length"])
                blocks.representatives[: blocks.sealed] = saved
                blocks.received = tensors[f"{number}.received"].to(store.device)
                state.layers[number] = blocks
        except (KeyError, IndexError, RuntimeError) as error:
            raise DamagedSessionError(f"its representatives are damaged: {error}") from None
        if any(blocks.length != store.length for blocks in state.layers.values()):
            raise DamagedSessionError("its representatives are those of another length")
        return state

    def copy(self) -> "InfLLMState":
        """See `Companion.copy`."""
        return InfLLMState({number: replace(blocks) for number, blocks in self.layers.items()})

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `Companion.tensors`."""
        found = {}
        for number, blocks in self.layers.items():
            found[f"{number}.representatives"] = blocks.representatives[: blocks.sealed]
            found[f"{number}.received"] = blocks.received
            found[f"{number}.length"] = torch.tensor([blocks.length])
        return found
