"""Where every key of a plan lies, in packed order, for the Triton kernel that attends to them.

For every query block and KV head one list of key blocks: sinks, selected blocks, window. A
packed position is then an index into the list times the block size, and attention walks one
list with one kind of address, whatever a key was chosen for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import head_table, load_slots
from ..triton_plans import load_plan, logical_blocks, packing_options
from ..types import PagedKV, SparsePlan


@triton.jit
def _pack_plan(
    lists,
    page_table,
    seqlen_k,
    packed,
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
    row = block.to(tl.int64) * tl.num_programs(1) + head
    tl.store(bases + row, base * BLOCK_SIZE_K)
    for first in range(0, capacity, CHUNK):
        position = first + tl.arange(0, CHUNK)
        logical = logical_blocks(position, chosen, window_start, base, BLOCK_SIZE_K, SINK_TOKENS)
        # Entries past the last key point at slot 0, which exists; their keys are masked.
        slot = load_slots(page_table, head, logical // PER_PAGE, position < used)
        where = slot * PER_PAGE + logical % PER_PAGE
        tl.store(packed + row * capacity + position, where, mask=position < capacity)


def pack_plan(
    plan: SparsePlan, kv: PagedKV, seqlen_k: torch.Tensor, num_tokens: int, keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed lists int32 [num_q_blocks, num_kv_heads, capacity] and bases int32 in tokens."""
    blocks, heads, num_selected = plan.block_indices.shape
    per_tile = max(1, keys // plan.block_size_k)
    # One tile more than needed: each tile's entries are fetched while the one before is used.
    tiles = triton.cdiv(triton.cdiv(plan.local_tokens, plan.block_size_k), per_tile) + 1
    capacity = tiles * per_tile
    device = plan.block_indices.device
    packed = torch.empty((blocks, heads, capacity), dtype=torch.int32, device=device)
    bases = torch.empty((blocks, heads), dtype=torch.int32, device=device)
    _pack_plan[(blocks, heads)](
        (plan.block_indices, plan.window_starts),
        head_table(kv.page_table),
        seqlen_k,
        packed,
        bases,
        num_tokens,
        num_selected,
        capacity,
        **packing_options(plan, kv),
    )
    return packed, bases
