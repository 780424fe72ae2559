"""Sparse decode attention: keys split over programs, the last program to end joins the parts.

A program takes every so-many-th tile of one query token's packed keys for all heads of a group.
Which tile comes first is known before anything is read, so that lengths, block numbers and
queries are fetched at once, then page slots, then keys: three waits on memory, not six. One
launch serves every length, because programs without a tile leave at once.

Keys are turned within their tile and the query back by the tile's first position: only the
first few rows of the tables are read, by every program alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..triton_common import (
    LOG2_E,
    begin,
    dot_precision,
    early_options,
    head_table,
    last_arrival,
    load_channels,
    load_rotated,
    load_scales,
    load_slots,
    pad_channels,
    pages_and_scales,
    require_launchable,
    require_supported,
    scale_stride,
    turn_pairs,
)
from ..types import PagedKV, RopeTables, SparsePlan
from .joining import join_parts


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: keys a product, and how many programs share the keys."""

    keys: int
    splits: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@triton.jit
def _chosen_blocks(
    chosen, position, num_selected, SINK_TOKENS: tl.constexpr, BLOCK_SIZE_K: tl.constexpr
):
    """Block numbers of packed positions, -1 for those that hold no selected token."""
    rank = (position - SINK_TOKENS) // BLOCK_SIZE_K
    listed = (position >= SINK_TOKENS) & (rank < num_selected)
    return tl.load(chosen + rank, mask=listed, other=-1)


@triton.jit
def _locate(
    key,
    open_key,
    frame,
    page_table,
    head,
    num_selected,
    SINK_TOKENS: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Slots and places in their pages of keys at packed positions `key` [KEYS].

    `frame` is what this token attends: (chosen, window_start, base), `base` being the packed
    position of the window's first key, 0 where everything is attended.
    """
    chosen, window_start, base = frame
    logical = tl.where(key >= base, window_start + key - base, key)
    block = _chosen_blocks(chosen, key, num_selected, SINK_TOKENS, BLOCK_SIZE_K)
    is_selected = (block >= 0) & (window_start > 0)
    logical = tl.where(is_selected, block * BLOCK_SIZE_K + key % BLOCK_SIZE_K, logical)
    slot = load_slots(page_table, head, logical // PAGE_SIZE, open_key).to(tl.int64)
    return slot, logical % PAGE_SIZE


@triton.jit
def _attend_tile(
    acc,
    largest,
    denominator,
    queries,
    rows,
    scales,
    tables,
    position,
    open_key,
    scale,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of keys of the online softmax, log-sum-exp in base 2.

    `queries` are rotary channels turned to the tile's frame and those beside them, `rows`
    pointers to rows of keys and values, `scales` pointers to theirs, `position` [KEYS] the keys'
    places in the frame.
    """
    HALF: tl.constexpr = SIZES[0]
    HEAD_DIM: tl.constexpr = SIZES[1]
    q_turned, q_rest = queries
    k_rows, v_rows = rows
    cos, sin, cos_stride = tables
    OPERAND: tl.constexpr = q_turned.dtype
    QUANTISED: tl.constexpr = k_rows.dtype.element_ty == tl.float8e4nv
    # Rows past the last key may never have been written: 0 * NaN must not reach the sum.
    values = load_channels(v_rows, open_key, 0, HEAD_DIM, PADS[2], True).to(OPERAND)
    turned = load_rotated(
        k_rows, open_key, cos, sin, position, cos_stride, HALF, PADS[0], OPERAND, False
    )
    logits = tl.dot(q_turned, tl.trans(turned), input_precision=PRECISION)
    if PADS[1] > 0:
        rest = load_channels(k_rows, open_key, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], False)
        logits = tl.dot(q_rest, tl.trans(rest.to(OPERAND)), logits, input_precision=PRECISION)
    if QUANTISED:
        logits *= load_scales(scales[0], open_key, True)[None, :]
    logits = tl.where(open_key[None, :], logits, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
    weights = tl.math.exp2(logits * scale - new_largest[:, None])
    shrink = tl.math.exp2(largest - new_largest)
    denominator = denominator * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    if QUANTISED:
        weights *= load_scales(scales[1], open_key, True)[None, :]
        # Channels as rows: as columns, fp8 values would be read from shared memory in bytes.
        weights = tl.trans(weights.to(OPERAND))
        acc += tl.trans(tl.dot(tl.trans(values), weights, input_precision=PRECISION))
    else:
        acc = tl.dot(weights.to(OPERAND), values, acc, input_precision=PRECISION)
    return acc, new_largest, denominator


@triton.jit
def _turn_query(q_lo, q_hi, position, tables, HALF: tl.constexpr, PAD: tl.constexpr):
    """Rotary channels of the query rows [ROWS, 2 * PAD], turned to one position."""
    cos, sin, cos_stride = tables
    half = tl.arange(0, PAD)
    at_query = position * cos_stride + half
    q_cos = tl.load(cos + at_query, mask=half < HALF, other=0.0).to(tl.float32)
    q_sin = tl.load(sin + at_query, mask=half < HALF, other=0.0).to(tl.float32)
    return turn_pairs(q_lo, q_hi, q_cos[None, :], q_sin[None, :], q_lo.dtype)


@triton.jit
def _decode(
    q,
    pages,
    page_table,
    block_indices,
    window_starts,
    seqlen_k,
    tables,
    results,
    counters,
    num_selected,
    local_tokens,
    scale,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    v_strides: tl.constexpr,
    index_strides: tl.constexpr,
    GROUP: tl.constexpr,
    SIZES: tl.constexpr,
    PADS: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    HALF: tl.constexpr = SIZES[0]
    HEAD_DIM: tl.constexpr = SIZES[1]
    CHANNELS: tl.constexpr = PADS[2]
    ROWS: tl.constexpr = PADS[4]
    k_pages, v_pages, k_scales, v_scales = pages
    out, lse, outs, lses = results
    split = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.program_id(2)
    num_splits = tl.num_programs(0)
    num_tokens = tl.num_programs(2)
    num_heads = tl.num_programs(1) * GROUP
    row = tl.arange(0, ROWS)
    valid = row < GROUP

    # The first wait: everything that needs no other value from memory.
    window_start = tl.load(window_starts + token)
    total_keys = tl.load(seqlen_k)
    chosen = block_indices + token.to(tl.int64) * index_strides[0] + head * index_strides[1]
    entry = tl.arange(0, PADS[3])
    indices = tl.load(chosen + entry, mask=entry < num_selected, other=-1)
    q_rows = q + token.to(tl.int64) * q_strides[0] + (head * GROUP + row) * q_strides[1]
    q_lo = load_channels(q_rows, valid, 0, HALF, PADS[0], True)
    q_hi = load_channels(q_rows, valid, HALF, HALF, PADS[0], True)

    base = SINK_TOKENS + tl.sum((indices >= 0).to(tl.int32), axis=0) * SIZES[2]
    base = tl.where(window_start > 0, base, 0)
    query_position = base + total_keys - num_tokens + token - window_start
    overflow = query_position >= local_tokens
    query_position = tl.minimum(query_position, local_tokens - 1)
    num_keys = query_position + 1
    parts = tl.minimum(tl.cdiv(num_keys, KEYS), num_splits)
    if split >= parts:
        return

    acc = tl.zeros([ROWS, CHANNELS], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    # Keys are turned from the first one of this program's first tile on.
    origin = split * KEYS
    q_turned = _turn_query(q_lo, q_hi, query_position - origin, tables, HALF, PADS[0])
    q_rest = q_turned
    if PADS[1] > 0:
        q_rest = load_channels(q_rows, valid, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], True)
    for first in range(origin, num_keys, num_splits * KEYS):
        key = first + tl.arange(0, KEYS)
        open_key = key < num_keys
        slot, offset = _locate(
            key, open_key, (chosen, window_start, base), page_table, head, num_selected,
            SINK_TOKENS, SIZES[2], SIZES[3],
        )  # fmt: skip
        k_rows = k_pages + slot * k_strides[0] + head * k_strides[1] + offset * k_strides[2]
        v_rows = v_pages + slot * v_strides[0] + head * v_strides[1] + offset * v_strides[2]
        scales = (k_scales + slot * SIZES[4] + head, v_scales + slot * SIZES[4] + head)
        acc, largest, denominator = _attend_tile(
            acc, largest, denominator, (q_turned, q_rest), (k_rows, v_rows), scales, tables,
            tl.minimum(key, query_position) - origin, open_key, scale, SIZES, PADS, PRECISION,
        )  # fmt: skip

    part_rows = num_tokens * num_heads
    first_row = token * num_heads + head * GROUP
    target = split.to(tl.int64) * part_rows + first_row + row
    tl.store(lses + target, largest + tl.math.log2(denominator), mask=valid)
    channel = tl.arange(0, CHANNELS)
    mask = valid[:, None] & (channel < HEAD_DIM)[None, :]
    tl.store(
        outs + target[:, None] * HEAD_DIM + channel[None, :], acc / denominator[:, None], mask=mask
    )
    if last_arrival(counters + token * tl.num_programs(1) + head, parts):
        join_parts(
            outs, lses, out, lse, first_row, part_rows, parts, overflow, GROUP, HEAD_DIM, PADS
        )


def default_tile(q: torch.Tensor, num_kv_heads: int, local_tokens: int) -> Tile:
    """One tile of keys a program where that fills a large GPU once, more where it would not."""
    # 32 KiB of keys and as much of values are what the registers of 4 warps hold.
    row_bytes = pad_channels(q.shape[2]) * q.element_size()
    keys = max(16, min(128, 32768 // row_bytes))
    tiles = triton.cdiv(local_tokens, keys)
    # Two programs fit a multiprocessor: a second round of them costs as much as the first.
    most = max(1, 264 // (len(q) * num_kv_heads))
    return Tile(keys, triton.cdiv(tiles, triton.cdiv(tiles, most)), num_warps=4, num_stages=1)


def _pads(half: int, head_dim: int, num_selected: int, group: int, splits: int) -> tuple[int, ...]:
    """PADS of `_decode`: sizes as powers of two, 0 where nothing is left beside rotary channels."""
    rest = head_dim - 2 * half
    return (
        pad_channels(half),
        pad_channels(rest) if rest else 0,
        pad_channels(head_dim),
        triton.next_power_of_2(max(num_selected, 1)),
        pad_channels(group),
        triton.next_power_of_2(splits),
        triton.next_power_of_2(group),
    )


def _results(q: torch.Tensor, splits: int) -> tuple[torch.Tensor, ...]:
    """Room for out and lse, and for those of every part."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    outs = torch.empty((splits, *q.shape), dtype=torch.float32, device=q.device)
    lses = torch.empty((splits, *q.shape[:2]), dtype=torch.float32, device=q.device)
    return out, lse, outs, lses


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    counters: torch.Tensor | None = None,
    tile: Tile | None = None,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with a given tile; `early` as in `triton_common.begin`."""
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    tile = tile or default_tile(q, heads, plan.local_tokens)
    half = rope.cos.shape[1] // 2
    num_selected = plan.block_indices.shape[2]
    if counters is None:
        counters = torch.zeros(num_tokens * heads, dtype=torch.int32, device=q.device)
    results = _results(q, tile.splits)
    _decode[(tile.splits, heads, num_tokens)](
        q,
        pages_and_scales(kv),
        head_table(kv.page_table),
        plan.block_indices,
        plan.window_starts,
        seqlen_k,
        (rope.cos, rope.sin, rope.cos.stride(0)),
        results,
        counters,
        num_selected,
        plan.local_tokens,
        softmax_scale * LOG2_E.value,
        q_strides=q.stride(),
        k_strides=kv.k_pages.stride(),
        v_strides=kv.v_pages.stride(),
        index_strides=plan.block_indices.stride(),
        GROUP=num_heads // heads,
        SIZES=(half, head_dim, plan.block_size_k, page_size, scale_stride(kv)),
        PADS=_pads(half, head_dim, num_selected, num_heads // heads, tile.splits),
        SINK_TOKENS=plan.sink_tokens,
        KEYS=tile.keys,
        PRECISION=dot_precision(q.dtype),
        EARLY=early,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
        **early_options(early),
    )
    return results[0], results[1]


def sparse_decode(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    counters: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.sparse_decode.sparse_decode`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    return launch(q, kv, plan, rope, seqlen_k, softmax_scale, counters)
