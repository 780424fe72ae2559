"""Sparse prefill attention over packed lists of key blocks (see `packing`).

`_attend` holds the rows of a query block and all heads of a group in one tile, so that a tile
of keys is loaded and rotated once for all of them: both halves of its rotary channels are
loaded, turned in registers and multiplied as two products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

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
    shared_bytes,
)
from ..types import PagedKV, RopeTables, SparsePlan
from .packing import pack_plan


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: query rows a program, keys a product."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@triton.jit
def _attend_tile(
    acc,
    largest,
    denominator,
    where,
    q_turned,
    q_rest,
    kv_of_head,
    packed_row,
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
    MASKED: tl.constexpr,
):
    """One step of the online softmax over keys [first, first + KEYS) in packed order.

    `kv_of_head` points to keys, values and the scales of both. `where` [KEYS] locates the keys'
    blocks; the next tile's is returned.
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
    slot = (where // PER_PAGE).to(tl.int64)
    token = (where % PER_PAGE) * BLOCK_SIZE_K + key % BLOCK_SIZE_K
    k_rows = kv_of_head[0] + slot * k_strides[0] + token * k_strides[2]
    v_rows = kv_of_head[1] + slot * v_strides[0] + token * v_strides[2]
    valid = key < num_keys
    position = key
    if MASKED:
        position = tl.minimum(key, num_keys - 1)
    # Fewer elements than logits and weights have: fp8 is scaled as it becomes 16 bits.
    k_factor = None
    if QUANTISED:
        k_factor = load_scales(kv_of_head[2] + slot * SIZES[5], valid, MASKED)
        v_factor = load_scales(kv_of_head[3] + slot * SIZES[5], valid, MASKED)
    turned = load_rotated(
        k_rows, valid, tables[0], tables[1], position, tables[2], HALF, PADS[0], OPERAND, False,
        k_factor,
    )  # fmt: skip
    logits = tl.dot(q_turned, tl.trans(turned), input_precision=PRECISION)
    if PADS[1] > 0:
        rest = load_channels(k_rows, valid, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], False)
        if QUANTISED:
            rest = (rest.to(tl.float32) * k_factor[:, None]).to(OPERAND)
        logits = tl.dot(q_rest, tl.trans(rest), logits, input_precision=PRECISION)
    if MASKED:
        logits = tl.where(key[None, :] <= query_position[:, None], logits, float("-inf"))
    # Key 0 is in the first tile and open to every query: `largest` is finite from there on.
    new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
    weights = tl.math.exp2(logits * scale - new_largest[:, None])
    shrink = tl.math.exp2(largest - new_largest)
    denominator = denominator * shrink + tl.sum(weights, axis=1)
    # Rows past the last key may never have been written: 0 * NaN must not reach the sum.
    values = load_channels(v_rows, valid, 0, HEAD_DIM, PADS[2], MASKED)
    if QUANTISED:
        values = (values.to(tl.float32) * v_factor[:, None]).to(OPERAND)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(OPERAND), values, acc, input_precision=PRECISION)
    # Fetched a step early, so that the compiler can prefetch keys and values themselves.
    where = tl.load(packed_row + (key + KEYS) // BLOCK_SIZE_K)
    return acc, new_largest, denominator, where


@triton.jit
def _attend(
    q,
    pages,
    packed,
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
    block = tl.program_id(0) // TILES
    row = (tl.program_id(0) % TILES) * ROWS + tl.arange(0, ROWS)
    first_token = block * BLOCK_SIZE_Q
    end_token = tl.minimum(first_token + BLOCK_SIZE_Q, num_tokens)
    token = first_token + row // GROUP
    valid = (token < end_token) & (row < BLOCK_SIZE_Q * GROUP)
    query_head = head * GROUP + row % GROUP

    entry = block.to(tl.int64) * num_kv_heads + head
    base = tl.load(bases + entry)
    # Packed position of token 0 of this call, if it stood in this block's frame.
    shift = base + tl.load(seqlen_k) - num_tokens - tl.load(window_starts + block)
    num_keys = shift + end_token
    # A plan that broke its promise of local_tokens must not look like an answer.
    overflow = num_keys > local_tokens
    num_keys = tl.minimum(num_keys, local_tokens)
    query_position = shift + tl.minimum(token, end_token - 1)

    q_rows = q + token.to(tl.int64) * q_strides[0] + query_head * q_strides[1]
    q_turned = load_rotated(
        q_rows, valid, cos, sin, tl.minimum(query_position, num_keys - 1), cos_stride,
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
    packed_row = packed + entry * capacity

    # Keys that every row of this tile may see, in whole tiles, need no mask.
    first_row_token = first_token + (tl.program_id(0) % TILES) * ROWS // GROUP
    last_row_token = first_token + ((tl.program_id(0) % TILES) * ROWS + ROWS - 1) // GROUP
    open_keys = tl.minimum(shift + first_row_token + 1, num_keys) // KEYS * KEYS
    where = tl.load(packed_row + tl.arange(0, KEYS) // SIZES[2])
    seen_keys = tl.minimum(shift + last_row_token + 1, num_keys)
    for first in range(0, open_keys, KEYS):
        acc, largest, denominator, where = _attend_tile(
            acc, largest, denominator, where, q_turned, q_rest, kv_of_head, packed_row, first,
            query_position, num_keys, (cos, sin, cos_stride), scale,
            k_strides, v_strides, SIZES, PADS, PRECISION, False,
        )  # fmt: skip
    for first in range(open_keys, seen_keys, KEYS):
        acc, largest, denominator, where = _attend_tile(
            acc, largest, denominator, where, q_turned, q_rest, kv_of_head, packed_row, first,
            query_position, num_keys, (cos, sin, cos_stride), scale,
            k_strides, v_strides, SIZES, PADS, PRECISION, True,
        )  # fmt: skip

    denominator = tl.where(overflow, float("nan"), denominator)
    num_heads = num_kv_heads * GROUP
    target = token.to(tl.int64) * num_heads + query_head
    tl.store(lse + target, (largest + tl.math.log2(denominator)) * LN_2, mask=valid)
    channel = tl.arange(0, D_PAD)
    mask = valid[:, None] & (channel < HEAD_DIM)[None, :]
    result = (acc / denominator[:, None]).to(out.dtype.element_ty)
    tl.store(out + target[:, None] * HEAD_DIM + channel[None, :], result, mask=mask)


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


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with a given tile."""
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    group = num_heads // heads
    tile = tile or default_tile(q, rope, plan.block_size_q * group)
    packed, bases = pack_plan(plan, kv, seqlen_k, num_tokens, tile.keys)
    half = rope.cos.shape[1] // 2
    rest = head_dim - 2 * half
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(plan.block_size_q * group, tile.rows)
    _attend[(len(packed) * tiles, heads)](
        q,
        pages_and_scales(kv),
        packed,
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
    return out, lse


def sparse_prefill(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    return_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `hipcli.kernels.sparse_prefill.sparse_prefill`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    out, lse = launch(q, kv, plan, rope, seqlen_k, softmax_scale)
    return out, lse if return_lse else None
