"""Attending for the tokens of a pass one by one, each with a plan of its own."""

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Geometry
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
    return sparse_decode(
        q,
        store.kv[layer],
        SparsePlan(blocks, window_starts, 1, block_size_k, geometry.sink_tokens, local_tokens),
        step.tables.first(local_tokens),
        store.seqlen_k(end),
        step.softmax_scale,
        backend=store.backend,
    )[0]
