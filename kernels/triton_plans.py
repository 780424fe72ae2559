"""What the Triton kernels that attend a plan share, be all of its keys here or a shard of them.

A plan becomes one list of key blocks a query block and KV head: sinks, selected blocks, window.
A tile of rows, the queries of a block with all heads of a group, then walks its list in tiles
of keys, so that a key is loaded and rotated once for all rows. `sparse_prefill` walks lists of
everything, where a key's place is its position; `shard_attention` lists of what lies in a shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .triton_common import (
    LN_2,
    dot_precision,
    load_channels,
    load_rotated,
    pad_channels,
    scale_stride,
    shared_bytes,
)
from .types import PagedKV, RopeTables, SparsePlan


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: query rows a program, keys a product."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# From most to least reuse of a rotated key; the first that fits the device is taken.
TILES = (
    Tile(256, 64, num_warps=8, num_stages=3),
    Tile(128, 64, num_warps=8, num_stages=3),
    Tile(128, 64, num_warps=8, num_stages=2),
    Tile(64, 64, num_warps=4, num_stages=2),
    Tile(64, 32, num_warps=4, num_stages=2),
    Tile(32, 32, num_warps=4, num_stages=1),
    Tile(16, 16, num_warps=4, num_stages=1),
)


@triton.jit
def load_plan(
    block,
    head,
    lists,
    seqlen_k,
    num_tokens,
    num_selected,
    index_strides: tl.constexpr,
    BLOCK_SIZE_Q: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SELECTED_PAD: tl.constexpr,
):
    """What one query block and KV head attend: (chosen, window_start, base, used).

    `lists` are the plan's block indices and window starts. `chosen` points to the selected
    blocks; the list of all has `used` entries, those of the window from `base` on.
    """
    total = tl.load(seqlen_k)
    window_start = tl.load(lists[1] + block)
    chosen = lists[0] + block.to(tl.int64) * index_strides[0] + head * index_strides[1]
    entry = tl.arange(0, SELECTED_PAD)
    indices = tl.load(chosen + entry, mask=entry < num_selected, other=-1)
    selected = tl.sum((indices >= 0).to(tl.int32), axis=0)
    base = tl.where(window_start > 0, SINK_TOKENS // BLOCK_SIZE_K + selected, 0)
    end = tl.minimum(total, total - num_tokens + (block + 1) * BLOCK_SIZE_Q)
    return chosen, window_start, base, base + tl.cdiv(end - window_start, BLOCK_SIZE_K)


@triton.jit
def logical_blocks(
    position, chosen, window_start, base, BLOCK_SIZE_K: tl.constexpr, SINK_TOKENS: tl.constexpr
):
    """Which blocks of the context stand at places of the list that `load_plan` tells of."""
    SINK_BLOCKS: tl.constexpr = SINK_TOKENS // BLOCK_SIZE_K
    is_selected = (position >= SINK_BLOCKS) & (position < base)
    logical = tl.load(chosen + position - SINK_BLOCKS, mask=is_selected, other=0)
    in_window = window_start // BLOCK_SIZE_K + position - base
    return tl.where(is_selected, logical, tl.where(position >= base, in_window, position))


@triton.jit
def tile_rows(num_tokens, GROUP: tl.constexpr, BLOCK_SIZE_Q: tl.constexpr, ROWS: tl.constexpr):
    """The query block and the rows of a program, numbered by row tile and KV head.

    The block's number and its tokens, as a first one and an end, in those of this call; then of
    each row [ROWS] the token, the query head, and whether there is such a row.
    """
    ROW_TILES: tl.constexpr = (BLOCK_SIZE_Q * GROUP + ROWS - 1) // ROWS
    block = tl.program_id(0) // ROW_TILES
    row = (tl.program_id(0) % ROW_TILES) * ROWS + tl.arange(0, ROWS)
    first_token = block * BLOCK_SIZE_Q
    end_token = tl.minimum(first_token + BLOCK_SIZE_Q, num_tokens)
    token = first_token + row // GROUP
    valid = (token < end_token) & (row < BLOCK_SIZE_Q * GROUP)
    query_head = tl.program_id(1) * GROUP + row % GROUP
    return block, first_token, end_token, token, query_head, valid


@triton.jit
def load_queries(q_rows, valid, tables, position, SIZES: tl.constexpr, PADS: tl.constexpr):
    """Rotary channels of queries, turned to their positions, and the channels beside them."""
    HALF: tl.constexpr = SIZES[0]
    q_turned = load_rotated(
        q_rows, valid, tables[0], tables[1], position, tables[2],
        HALF, PADS[0], q_rows.dtype.element_ty, True,
    )  # fmt: skip
    q_rest = q_turned
    if PADS[1] > 0:
        q_rest = load_channels(q_rows, valid, 2 * HALF, SIZES[1] - 2 * HALF, PADS[1], True)
    return q_turned, q_rest


@triton.jit
def pages_of_head(pages, head, k_strides: tl.constexpr, v_strides: tl.constexpr):
    """Pointers to keys, values and the scales of both of one KV head."""
    k_pages, v_pages, k_scales, v_scales = pages
    k_head = k_pages + head * k_strides[1]
    return k_head, v_pages + head * v_strides[1], k_scales + head, v_scales + head


@triton.jit
def locate(
    kv_of_head, where, key, k_strides: tl.constexpr, v_strides: tl.constexpr, SIZES: tl.constexpr
):
    """Slots of keys, and pointers to their rows of keys and values.

    `where` [KEYS] are the blocks they are in, counted through the slots, `key` [KEYS] their
    places in the list.
    """
    BLOCK_SIZE_K: tl.constexpr = SIZES[2]
    PER_PAGE: tl.constexpr = SIZES[3] // BLOCK_SIZE_K
    slot = (where // PER_PAGE).to(tl.int64)
    token = (where % PER_PAGE) * BLOCK_SIZE_K + key % BLOCK_SIZE_K
    k_rows = kv_of_head[0] + slot * k_strides[0] + token * k_strides[2]
    return slot, k_rows, kv_of_head[1] + slot * v_strides[0] + token * v_strides[2]


@triton.jit
def score_keys(
    q_turned,
    q_rest,
    k_rows,
    valid,
    tables,
    position,
    factor,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Products fp32 [ROWS, KEYS] of queries and the keys at row pointers, turned to `position`.

    `factor` [KEYS] are scales of codes, None for keys without.
    """
    HALF: tl.constexpr = SIZES[0]
    OPERAND: tl.constexpr = q_turned.dtype
    turned = load_rotated(
        k_rows, valid, tables[0], tables[1], position, tables[2],
        HALF, PADS[0], OPERAND, MASKED, factor,
    )  # fmt: skip
    logits = tl.dot(q_turned, tl.trans(turned), input_precision=PRECISION)
    if PADS[1] > 0:
        rest = load_channels(k_rows, valid, 2 * HALF, SIZES[1] - 2 * HALF, PADS[1], MASKED)
        if factor is not None:
            rest = (rest.to(tl.float32) * factor[:, None]).to(OPERAND)
        logits = tl.dot(q_rest, tl.trans(rest), logits, input_precision=PRECISION)
    return logits


@triton.jit
def add_values(
    acc,
    weights,
    v_rows,
    valid,
    factor,
    OPERAND: tl.constexpr,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """`acc` with the values at row pointers added by their weights.

    Rows that may never have been written must not be valid: 0 * NaN would reach the sum.
    """
    values = load_channels(v_rows, valid, 0, SIZES[1], PADS[2], MASKED)
    if factor is not None:
        values = (values.to(tl.float32) * factor[:, None]).to(OPERAND)
    return tl.dot(weights.to(OPERAND), values, acc, input_precision=PRECISION)


@triton.jit
def store_rows(
    out, lse, target, valid, acc, largest, denominator, SIZES: tl.constexpr, PADS: tl.constexpr
):
    """Ends the online softmax of rows: their sums divided, and log-sum-exp from base 2 to e."""
    tl.store(lse + target, (largest + tl.math.log2(denominator)) * LN_2, mask=valid)
    CHANNELS: tl.constexpr = PADS[2]
    channel = tl.arange(0, CHANNELS)
    mask = valid[:, None] & (channel < SIZES[1])[None, :]
    result = (acc / denominator[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * SIZES[1] + channel[None, :], result, mask=mask)


def _needed_bytes(tile: Tile, channels: int, element: int, table_element: int) -> int:
    """Shared memory of a tile: queries, turned keys, and the buffers of keys, tables, values."""
    keys = tile.keys * channels
    buffers = (tile.num_stages - 1) * keys * (element + table_element)
    return tile.rows * channels * element + keys * element * (1 + tile.num_stages) + buffers


def default_tile(q: torch.Tensor, rope: RopeTables, rows: int) -> Tile:
    """The largest tile that `rows` query rows fill and the device has room for."""
    half = rope.cos.shape[1] // 2
    rest = q.shape[2] - 2 * half
    channels = 2 * pad_channels(half) + (pad_channels(rest) if rest else 0)
    channels = max(channels, pad_channels(q.shape[2]))
    sizes = (channels, q.element_size(), rope.cos.element_size())
    for tile in TILES:
        # More than this many accumulators a thread would spill.
        fits_registers = tile.rows * channels <= 4096 * tile.num_warps
        fits = fits_registers and _needed_bytes(tile, *sizes) <= shared_bytes(q.device)
        if fits and tile.rows <= max(16, triton.next_power_of_2(rows)):
            return tile
    raise NotImplementedError(
        f"head_dim {q.shape[2]} in {q.dtype}: no tile fits the {shared_bytes(q.device)} bytes of "
        "shared memory of this device"
    )


def packing_options(plan: SparsePlan, kv: PagedKV) -> dict[str, object]:
    """Compile-time arguments of the kernels that make lists."""
    return {
        "index_strides": plan.block_indices.stride(),
        "BLOCK_SIZE_Q": plan.block_size_q,
        "BLOCK_SIZE_K": plan.block_size_k,
        "PAGE_SIZE": kv.k_pages.shape[2],
        "SINK_TOKENS": plan.sink_tokens,
        "SELECTED_PAD": triton.next_power_of_2(max(plan.block_indices.shape[2], 1)),
        "CHUNK": 256,
    }


def attending_options(
    q: torch.Tensor, kv: PagedKV, plan: SparsePlan, rope: RopeTables, tile: Tile
) -> dict[str, object]:
    """Compile-time arguments and launch options of the kernels that walk lists."""
    head_dim, page_size = q.shape[2], kv.k_pages.shape[2]
    half = rope.cos.shape[1] // 2
    rest = head_dim - 2 * half
    return {
        "q_strides": q.stride(),
        "k_strides": kv.k_pages.stride(),
        "v_strides": kv.v_pages.stride(),
        "GROUP": q.shape[1] // kv.k_pages.shape[1],
        "BLOCK_SIZE_Q": plan.block_size_q,
        "SIZES": (half, head_dim, plan.block_size_k, page_size, tile.keys, scale_stride(kv)),
        "PADS": (pad_channels(half), pad_channels(rest) if rest else 0, pad_channels(head_dim)),
        "ROWS": tile.rows,
        "PRECISION": dot_precision(q.dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
