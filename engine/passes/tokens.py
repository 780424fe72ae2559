"""Attending for the tokens of a pass one by one, each with a plan of its own."""

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.passes.given import beyond_window
from hipcli.engine.passes.pieces import attend_by_pieces
from hipcli.engine.passes.tiers import fetched, pages_of
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.types import SparsePlan


def attend_tokens(
    layer: int,
    q: torch.Tensor,
    step: StepInput,
    plan: tuple[torch.Tensor, torch.Tensor],
    geometry: Geometry,
    block_size_k: int,
) -> torch.Tensor:
    """Attend the T tokens of a pass, each with a plan of its own.

    Args:
        layer: which layer.
        q: [T, num_heads, head_dim], un-rotated.
        step: the pass.
        plan: block_indices int32 [T, num_kv_heads, n] and window_starts int32 [T].
        geometry: sinks and window.
        block_size_k: tokens of a block.
    """
    blocks, window_starts = plan
    end = step.start + q.shape[0]
    selected = blocks.shape[2] * block_size_k
    sparse = geometry.sink_tokens + selected + geometry.window_tokens + PAGE_TOKENS + q.shape[0]
    dense = end if geometry.window_start(step.start) == 0 else 0
    local_tokens = max(sparse, dense)
    store = step.store
    first = geometry.window_start(step.start)
    store.check_attended(layer, blocks, block_size_k, geometry.sink_tokens, first)
    outs, num_dense = [], _dense_tokens(geometry, step, end)
    if num_dense:
        outs.append(attend_by_pieces(layer, q[:num_dense], step, step.start))
    pages = pages_of(blocks, block_size_k)
    if first:
        pages = beyond_window(pages, first)
    for some in fetched(step, layer, pages[num_dense:], count=True):
        rows = slice(num_dense + some.start, num_dense + some.stop)
        if rows.stop == rows.start:
            break
        few = SparsePlan(
            blocks[rows], window_starts[rows], 1, block_size_k, geometry.sink_tokens, local_tokens
        )
        out, _ = sparse_decode(
            q[rows],
            store.kv[layer],
            few,
            step.tables.first(local_tokens),
            store.seqlen_k(step.start + rows.stop),
            step.softmax_scale,
            backend=store.backend,
        )
        outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _dense_tokens(geometry: Geometry, step: StepInput, end: int) -> int:
    """First tokens of a pass whose keys are not all on the device though they attend all."""
    if not step.fetches:
        return 0
    return sum(geometry.window_start(position) == 0 for position in range(step.start, end))
