"""Which keys of a plan lie here, and where in the plan they stand, for the Triton kernel.

For every query block and KV head one list of the key blocks that lie in this shard, in packed
order and without holes, so that the work of a shard is that of its own keys. Beside each block
stands its packed position, which no longer follows from its place in the list.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import head_table, table_of_head
from ..triton_plans import load_plan, logical_blocks, packing_options
from ..types import PagedKV, SparsePlan


@triton.jit
def _pack_shard(
    lists,
    page_table,
    seqlen_k,
    packed,
    positions,
    counts,
    bases,
    num_tokens,
    num_selected,
    capacity,
    index_strides: tl.constexpr,
    BLOCK_SIZE_Q: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SELECTED_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1)
    PER_PAGE: tl.constexpr = PAGE_SIZE // BLOCK_SIZE_K
    chosen, window_start, base, used = load_plan(
        block, head, lists, seqlen_k, num_tokens, num_selected,
        index_strides, BLOCK_SIZE_Q, BLOCK_SIZE_K, SINK_TOKENS, SELECTED_PAD,
    )  # fmt: skip
    # A plan that broke its promise of local_tokens is told apart by the kernel, not written past.
    used = tl.minimum(used, capacity)
    row = block.to(tl.int64) * tl.num_programs(1) + head
    table = table_of_head(page_table, head)
    count = 0
    for first in range(0, used, CHUNK):
        position = first + tl.arange(0, CHUNK)
        logical = logical_blocks(position, chosen, window_start, base, BLOCK_SIZE_K, SINK_TOKENS)
        slot = tl.load(table + logical // PER_PAGE, mask=position < used, other=-1)
        here = (slot >= 0).to(tl.int32)
        at = row * capacity + count + tl.cumsum(here, axis=0) - here
        where = slot * PER_PAGE + logical % PER_PAGE
        tl.store(packed + at, where, mask=slot >= 0)
        tl.store(positions + at, position, mask=slot >= 0)
        count += tl.sum(here, axis=0)
    tl.store(counts + row, count)
    tl.store(bases + row, base * BLOCK_SIZE_K)


def pack_shard(
    plan: SparsePlan, kv: PagedKV, seqlen_k: torch.Tensor, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The blocks of a plan that lie here.

    Returns:
        packed and positions int32 [num_q_blocks, num_kv_heads, capacity], in blocks: where a
        block's keys are, and at which packed position; counts int32 [num_q_blocks, num_kv_heads],
        how many of both there are; bases, the same shape, where the window begins, in tokens.
    """
    blocks, heads, num_selected = plan.block_indices.shape
    capacity = triton.cdiv(plan.local_tokens, plan.block_size_k)
    device = plan.block_indices.device
    packed, positions = (
        torch.empty((blocks, heads, capacity), dtype=torch.int32, device=device) for _ in range(2)
    )
    counts, bases = (
        torch.empty((blocks, heads), dtype=torch.int32, device=device) for _ in range(2)
    )
    _pack_shard[(blocks, heads)](
        (plan.block_indices, plan.window_starts),
        head_table(kv.page_table),
        seqlen_k,
        packed,
        positions,
        counts,
        bases,
        num_tokens,
        num_selected,
        capacity,
        **packing_options(plan, kv),
    )
    return packed, positions, counts, bases
