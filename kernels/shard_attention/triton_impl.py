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
from ..sparse_prefill.triton_impl import Tile, default_tile
from ..triton_common import (
    LN_2,
    LOG2_E,
    dot_precision,
    load_channels,
    load_rotated,
    load_scales,
    pad_channels,
    pages_and_scales,
    require_launchable,
    require_supported,
    scale_stride,
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
    HALF: tl.constexpr = SIZES[0]
    HEAD_DIM: tl.constexpr = SIZES[1]
    BLOCK_SIZE_K: tl.constexpr = SIZES[2]
    PAGE_SIZE: tl.constexpr = SIZES[3]
    KEYS: tl.constexpr = SIZES[4]
    PER_PAGE: tl.constexpr = PAGE_SIZE // BLOCK_SIZE_K
    QUANTISED: tl.constexpr = kv_of_head[0].dtype.element_ty == tl.float8e4nv
    OPERAND: tl.constexpr = q_turned.dtype
    key = first + tl.arange(0, KEYS)
    valid = key < num_keys
    where = tl.load(lists[0] + key // BLOCK_SIZE_K, mask=valid, other=0)
    position = tl.load(lists[1] + key // BLOCK_SIZE_K, mask=valid, other=0) * BLOCK_SIZE_K
    position += key % BLOCK_SIZE_K
    seen = valid[None, :] & (position[None, :] <= query_position[:, None])
    slot = (where // PER_PAGE).to(tl.int64)
    token = (where % PER_PAGE) * BLOCK_SIZE_K + key % BLOCK_SIZE_K
    k_rows = kv_of_head[0] + slot * k_strides[0] + token * k_strides[2]
    v_rows = kv_of_head[1] + slot * v_strides[0] + token * v_strides[2]
    k_factor = None
    if QUANTISED:
        k_factor = load_scales(kv_of_head[2] + slot * SIZES[5], valid, True)
        v_factor = load_scales(kv_of_head[3] + slot * SIZES[5], valid, True)
    turned = load_rotated(
        k_rows, valid, tables[0], tables[1], tl.minimum(position, tables[3] - 1), tables[2],
        HALF, PADS[0], OPERAND, True, k_factor,
    )  # fmt: skip
    logits = tl.dot(q_turned, tl.trans(turned), input_precision=PRECISION)
    if PADS[1] > 0:
        rest = load_channels(k_rows, valid, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], True)
        if QUANTISED:
            rest = (rest.to(tl.float32) * k_factor[:, None]).to(OPERAND)
        logits = tl.dot(q_rest, tl.trans(rest), logits, input_precision=PRECISION)
    logits = tl.where(seen, logits, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
    # A row that has seen no key yet: with -inf below, its weights would be NaN.
    floor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
    weights = tl.math.exp2(logits * scale - floor[:, None])
    shrink = tl.math.exp2(largest - floor)
    denominator = denominator * shrink + tl.sum(weights, axis=1)
    # Rows past the newest key may never have been written: 0 * NaN must not reach the sum.
    open_to_some = valid & (position <= tl.max(query_position, axis=0))
    values = load_channels(v_rows, open_to_some, 0, HEAD_DIM, PADS[2], True)
    if QUANTISED:
        values = (values.to(tl.float32) * v_factor[:, None]).to(OPERAND)
    acc = tl.dot(
        weights.to(OPERAND), values, acc * shrink[:, None], input_precision=PRECISION
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
    cos,
    sin,
    out,
    lse,
    num_tokens,
    capacity,
    local_tokens,
    cos_stride,
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
    HALF: tl.constexpr = SIZES[0]
    HEAD_DIM: tl.constexpr = SIZES[1]
    KEYS: tl.constexpr = SIZES[4]
    D_PAD: tl.constexpr = PADS[2]
    TILES: tl.constexpr = (BLOCK_SIZE_Q * GROUP + ROWS - 1) // ROWS
    num_kv_heads = tl.num_programs(1)
    head = tl.program_id(1)
    split = tl.program_id(2)
    block = tl.program_id(0) // TILES
    row = (tl.program_id(0) % TILES) * ROWS + tl.arange(0, ROWS)
    first_token = block * BLOCK_SIZE_Q
    end_token = tl.minimum(first_token + BLOCK_SIZE_Q, num_tokens)
    token = first_token + row // GROUP
    valid = (token < end_token) & (row < BLOCK_SIZE_Q * GROUP)
    query_head = head * GROUP + row % GROUP

    entry = block.to(tl.int64) * num_kv_heads + head
    # Packed position of token 0 of this call, if it stood in this block's frame.
    shift = tl.load(bases + entry) + tl.load(seqlen_k) - num_tokens
    shift -= tl.load(window_starts + block)
    # A plan that broke its promise of local_tokens must not look like an answer.
    overflow = shift + end_token > local_tokens
    query_position = shift + tl.minimum(token, end_token - 1)
    q_rows = q + token.to(tl.int64) * q_strides[0] + query_head * q_strides[1]
    q_turned = load_rotated(
        q_rows, valid, cos, sin, tl.minimum(query_position, local_tokens - 1), cos_stride,
        HALF, PADS[0], q.dtype.element_ty, True,
    )  # fmt: skip
    q_rest = q_turned
    if PADS[1] > 0:
        q_rest = load_channels(q_rows, valid, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], True)
    acc = tl.zeros([ROWS, D_PAD], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    k_pages, v_pages, k_scales, v_scales = pages
    kv_of_head = (
        k_pages + head * k_strides[1], v_pages + head * v_strides[1],
        k_scales + head, v_scales + head,
    )  # fmt: skip
    mine = (lists[0] + entry * capacity, lists[1] + entry * capacity)
    num_keys = tl.load(counts + entry) * SIZES[2]
    for first in range(split * KEYS, num_keys, tl.num_programs(2) * KEYS):
        acc, largest, denominator = _attend_tile(
            acc, largest, denominator, q_turned, q_rest, kv_of_head, mine, first,
            query_position, num_keys, (cos, sin, cos_stride, local_tokens), scale,
            k_strides, v_strides, SIZES, PADS, PRECISION,
        )  # fmt: skip

    empty = denominator == 0
    total = tl.where(empty, 1.0, denominator)
    found = tl.where(empty, float("-inf"), (largest + tl.math.log2(total)) * LN_2)
    found = tl.where(overflow, float("nan"), found)
    num_heads = num_kv_heads * GROUP
    target = (split.to(tl.int64) * num_tokens + token) * num_heads + query_head
    tl.store(lse + target, found, mask=valid)
    channel = tl.arange(0, D_PAD)
    mask = valid[:, None] & (channel < HEAD_DIM)[None, :]
    result = acc / tl.where(overflow, float("nan"), total)[:, None]
    at = out + target[:, None] * HEAD_DIM + channel[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=mask)


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
    half = rope.cos.shape[1] // 2
    rest = head_dim - 2 * half
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
        rope.cos,
        rope.sin,
        out,
        lse,
        num_tokens,
        packed.shape[2],
        plan.local_tokens,
        rope.cos.stride(0),
        softmax_scale * LOG2_E.value,
        q_strides=q.stride(),
        k_strides=kv.k_pages.stride(),
        v_strides=kv.v_pages.stride(),
        GROUP=group,
        BLOCK_SIZE_Q=plan.block_size_q,
        SIZES=(half, head_dim, plan.block_size_k, page_size, tile.keys, scale_stride(kv)),
        PADS=(pad_channels(half), pad_channels(rest) if rest else 0, pad_channels(head_dim)),
        ROWS=tile.rows,
        PRECISION=dot_precision(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if splits == 1:
        return out[0], lse[0]
    return merge_partials(out, lse, q.dtype)
