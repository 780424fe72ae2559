"""Reading a document: its chunks attend what the method selects for blocks of queries.

In a tiered store all blocks of a chunk select first; then as many of them at a time as the device
has room for fetch what they selected and attend.
"""

from dataclasses import dataclass, field, replace

import torch

from hipcli.engine.forward.dense import fused_attention
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.passes.parts import Part, parts
from hipcli.engine.passes.pieces import attend_by_pieces
from hipcli.engine.passes.tiers import fetched, pages_of
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import SparsePlan


@dataclass(slots=True)
class PrefillPass:
    """Chunks of a document, selected for in blocks of 64 queries."""

    method: Method
    _chunk: tuple[int, int] = (-1, -1)
    _chunk_parts: list[Part] = field(default_factory=list)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        own = self.method.own_attention
        if own is None or not own.keeps_state:
            step.end_where_written(layer)
        if own is not None:
            return own.attend(layer, q, step)
        if (step.start, q.shape[0]) != self._chunk:
            self._chunk = (step.start, q.shape[0])
            self._chunk_parts = parts(self.method.geometry, *self._chunk, q.device)
        outs = [
            self._attend(layer, q[part.low : part.high], step, part) for part in self._chunk_parts
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, layer: int, q: torch.Tensor, step: StepInput, part: Part) -> torch.Tensor:
        store, geometry = step.store, self.method.geometry
        blocks, sink_tokens, local_tokens = None, 0, part.end
        block_size_k = self.method.prefill_block_size_k
        if part.dense and step.fetches:
            return attend_by_pieces(layer, q, step, part.end - q.shape[0])
        if part.dense and store.device.type == "cuda" and q.dtype != torch.float32:
            return fused_attention(layer, q, step, part.end - q.shape[0], part.end)
        if not part.dense:
            blocks = self.method.select_prefill(layer, q, part.window_starts, step)
            sink_tokens = geometry.sink_tokens
            selected = 0 if blocks is None else blocks.shape[2] * block_size_k
            local_tokens = sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS
        first = geometry.window_start(part.end - q.shape[0])
        store.check_attended(layer, blocks, block_size_k, sink_tokens, first)
        plan = SparsePlan(
            no_blocks(len(part.window_starts), step) if blocks is None else blocks,
            part.window_starts,
            PAGE_TOKENS,
            block_size_k,
            sink_tokens,
            local_tokens,
        )
        pages = pages_of(plan.block_indices, block_size_k)
        outs = [
            self._attend_blocks(layer, q, step, part, plan, some)
            for some in fetched(step, layer, pages)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend_blocks(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        part: Part,
        plan: SparsePlan,
        some: slice,
    ) -> torch.Tensor:
        """Some blocks of a part's queries, after their keys have been fetched."""
        first, tokens = part.end - q.shape[0], q.shape[0]
        rows = slice(some.start * PAGE_TOKENS, min(some.stop * PAGE_TOKENS, tokens))
        if rows.stop - rows.start < tokens:
            plan = replace(
                plan,
                block_indices=plan.block_indices[some],
                window_starts=plan.window_starts[some],
            )
        # Rows for the whole chunk beyond the plan's own: on a CPU its windows share their keys.
        rope = step.tables.first(plan.local_tokens + tokens)
        store = step.store
        return sparse_prefill(
            q[rows],
            store.kv[layer],
            plan,
            rope,
            store.seqlen_k(first + rows.stop),
            step.softmax_scale,
            return_lse=False,
            backend=store.backend,
        )[0]
