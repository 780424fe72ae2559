"""The attention of one shard over the packed list of the key blocks that lie here.

Tiles are those of `sparse_prefill`: the rows of a query block and all heads of a group. What
differs: a key's position is looked up, any key may be hidden from a row, and a row may see none.
A single token has few tiles of rows, so its keys are split over programs and joined afterwards.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..merge_partials.triton_impl import merge_partials
from ..triton_common import (
    LOG2_E,
    load_scales,
    pages_and_scales,
    require_launchable,
    require_supported,
)
from ..triton_plans import (
    Tile,
    add_values,
    attending_options,
    default_tile,
    load_queries,
    locate,
    pages_of_head,
    score_keys,
    store_rows,
    tile_rows,
)
from ..types import PagedKV, RopeTables, SparsePlan
from .packing import pack_shard

# Programs that keep a GPU busy, and the fewest tiles of keys that are worth one of them.
BUSY_PROGRAMS = 264
TILES_A_SPLIT = 2
# For so few rows that a tile of `sparse_prefill` would be empty but for them.
FEW_ROWS = Tile(16, 64, num_warps=4, num_stages=3)


@triton.jit
def _attend_tile(
    acc,
    largest,
    denominator,
    q_turned,
    q_rest,
    kv_of_head,
    lists,
    first,
    query_position,
    num_keys,
    local_tokens,
    tables,
    scale,
    k_strides: tl.constexpr,
    v_strides: tl.constexpr,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of the online softmax over keys [first, first + KEYS) of the list.

    `kv_of_head` points to keys, values and the scales of both, `lists` to where the blocks are
    and at which positions.
    """
    BLOCK_SIZE_K: tl.constexpr = SIZES[2]
    KEYS: tl.constexpr = SIZES[4]
    QUANTISED: tl.constexpr = kv_of_head[0].dtype.element_ty == tl.float8e4nv
    key = first + tl.arange(0, KEYS)
    valid = key < num_keys
    where = tl.load(lists[0] + key // BLOCK_SIZE_K, mask=valid, other=0)
    position = tl.load(lists[1] + key // BLOCK_SIZE_K, mask=valid, other=0) * BLOCK_SIZE_K
    position += key % BLOCK_SIZE_K
    seen = valid[None, :] & (position[None, :] <= query_position[:, None])
    slot, k_rows, v_rows = locate(kv_of_head, where, key, k_strides, v_strides, SIZES)
    k_factor = None
    v_factor = None
    if QUANTISED:
        k_factor = load_scales(kv_of_head[2] + slot * SIZES[5], valid, True)
        v_factor = load_scales(kv_of_head[3] + slot * SIZES[5], valid, True)
    logits = score_keys(
        q_turned, q_rest, k_rows, valid, tables, tl.minimum(position, local_tokens - 1), k_factor,
        SIZES, PADS, PRECISION, True,
    )  # fmt: skip
    logits = tl.where(seen, logits, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
    # A row that has seen no key yet: with -inf below, its weights would be NaN.
    floor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.math.exp2(logits * scale - floor[:, None])
    shrink = tl.math.exp2(largest - floor)
    denominator = denominator * shrink + tl.sum(weights, axis=1)
    # Rows past the newest key may never have been written: 0 * NaN must not reach the sum.
    open_to_some = valid & (position <= tl.max(query_position, axis=0))
    acc = add_values(
        acc * shrink[:, None], weights, v_rows, open_to_some, v_factor,
        q_turned.dtype, SIZES, PADS, PRECISION, True,
    )  # fmt: skip
    return acc, new_largest, denominator


@triton.jit
def _attend_shard(
    q,
    pages,
    lists,
    counts,
    bases,
    window_starts,
    seqlen_k,
    tables,
    out,
    lse,
    num_tokens,
    capacity,
    local_tokens,
    scale,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    v_strides: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE_Q: tl.constexpr,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    KEYS: tl.constexpr = SIZES[4]
    CHANNELS: tl.constexpr = PADS[2]
    num_kv_heads = tl.num_programs(1)
    head = tl.program_id(1)
    split = tl.program_id(2)
    block, first_token, end_token, token, query_head, valid = tile_rows(
        num_tokens, GROUP, BLOCK_SIZE_Q, ROWS
    )
    entry = block.to(tl.int64) * num_kv_heads + head
    # Packed position of token 0 of this call, if it stood in this block's frame.
    shift = tl.load(bases + entry) + tl.load(seqlen_k) - num_tokens
    shift -= tl.load(window_starts + block)
    # A plan that broke its promise of local_tokens must not look like an answer.
    overflow = shift + end_token > local_tokens
    query_position = shift + tl.minimum(token, end_token - 1)
    q_rows = q + token.to(tl.int64) * q_strides[0] + query_head * q_strides[1]
    q_turned, q_rest = load_queries(
        q_rows, valid, tables, tl.minimum(query_position, local_tokens - 1), SIZES, PADS
    )
    acc = tl.zeros([ROWS, CHANNELS], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    kv_of_head = pages_of_head(pages, head, k_strides, v_strides)
    mine = (lists[0] + entry * capacity, lists[1] + entry * capacity)
    num_keys = tl.load(counts + entry) * SIZES[2]
    for first in range(split * KEYS, num_keys, tl.num_programs(2) * KEYS):
        acc, largest, denominator = _attend_tile(
            acc, largest, denominator, q_turned, q_rest, kv_of_head, mine, first,
            query_position, num_keys, local_tokens, tables, scale,
            k_strides, v_strides, SIZES, PADS, PRECISION,
        )  # fmt: skip

    # A row without a key here: 0 / 1, and log-sum-exp -inf as `largest` has it.
    denominator = tl.where(denominator == 0, 1.0, denominator)
    denominator = tl.where(overflow, float("nan"), denominator)
    target = (split.to(tl.int64) * num_tokens + token) * (num_kv_heads * GROUP) + query_head
    store_rows(out, lse, target, valid, acc, largest, denominator, SIZES, PADS)


def num_splits(programs: int, plan: SparsePlan, tile: Tile) -> int:
    """Over how many programs the keys of a tile of rows are spread."""
    tiles = triton.cdiv(plan.local_tokens, tile.keys)
    wanted = min(BUSY_PROGRAMS // programs, tiles // TILES_A_SPLIT)
    return max(1, wanted)


def shard_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.shard_attention.shard_attention`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    group = num_heads // heads
    block_rows = plan.block_size_q * group
    tile = FEW_ROWS if block_rows <= FEW_ROWS.rows else default_tile(q, rope, block_rows)
    packed, positions, counts, bases = pack_shard(plan, kv, seqlen_k, num_tokens)
    rows = len(packed) * triton.cdiv(block_rows, tile.rows)
    splits = num_splits(rows * heads, plan, tile)
    # Partial results keep their bits until they are joined.
    dtype = q.dtype if splits == 1 else torch.float32
    out = torch.empty((splits, *q.shape), dtype=dtype, device=q.device)
    lse = torch.empty((splits, num_tokens, num_heads), dtype=torch.float32, device=q.device)
    _attend_shard[(rows, heads, splits)](
        q,
        pages_and_scales(kv),
        (packed, positions),
        counts,
        bases,
        plan.window_starts,
        seqlen_k,
        (rope.cos, rope.sin, rope.cos.stride(0)),
        out,
        lse,
        num_tokens,
        packed.shape[2],
        plan.local_tokens,
        softmax_scale * LOG2_E.value,
        **attending_options(q, kv, plan, rope, tile),
    )
    if splits == 1:
        return out[0], lse[0]
    return merge_partials(out, lse, q.dtype)
