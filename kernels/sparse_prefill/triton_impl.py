"""Sparse prefill attention over packed lists of key blocks (see `packing`).

`_attend` holds the rows of a query block and all heads of a group in one tile, so that a tile
of keys is loaded and rotated once for all of them: both halves of its rotary channels are
loaded, turned in registers and multiplied as two products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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
from .packing import pack_plan


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
    BLOCK_SIZE_K: tl.constexpr = SIZES[2]
    KEYS: tl.constexpr = SIZES[4]
    QUANTISED: tl.constexpr = kv_of_head[0].dtype.element_ty == tl.float8e4nv
    key = first + tl.arange(0, KEYS)
    slot, k_rows, v_rows = locate(kv_of_head, where, key, k_strides, v_strides, SIZES)
    valid = key < num_keys
    position = key
    if MASKED:
        position = tl.minimum(key, num_keys - 1)
    # Fewer elements than logits and weights have: fp8 is scaled as it becomes 16 bits.
    k_factor = None
    v_factor = None
    if QUANTISED:
        k_factor = load_scales(kv_of_head[2] + slot * SIZES[5], valid, MASKED)
        v_factor = load_scales(kv_of_head[3] + slot * SIZES[5], valid, MASKED)
    logits = score_keys(
        q_turned, q_rest, k_rows, valid, tables, position, k_factor, SIZES, PADS, PRECISION, False
    )  # fmt: skip
    if MASKED:
        logits = tl.where(key[None, :] <= query_position[:, None], logits, float("-inf"))
    # Key 0 is in the first tile and open to every query: `largest` is finite from there on.
    new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
    weights = tl.math.exp2(logits * scale - new_largest[:, None])
    shrink = tl.math.exp2(largest - new_largest)
    denominator = denominator * shrink + tl.sum(weights, axis=1)
    # Rows past the last key may never have been written: 0 * NaN must not reach the sum.
    acc = add_values(
        acc * shrink[:, None], weights, v_rows, valid, v_factor,
        q_turned.dtype, SIZES, PADS, PRECISION, MASKED,
    )  # fmt: skip
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
    TILES: tl.constexpr = (BLOCK_SIZE_Q * GROUP + ROWS - 1) // ROWS
    num_kv_heads = tl.num_programs(1)
    head = tl.program_id(1)
    block, first_token, end_token, token, query_head, valid = tile_rows(
        num_tokens, GROUP, BLOCK_SIZE_Q, ROWS
    )
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
    q_turned, q_rest = load_queries(
        q_rows, valid, tables, tl.minimum(query_position, num_keys - 1), SIZES, PADS
    )
    acc = tl.zeros([ROWS, CHANNELS], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    kv_of_head = pages_of_head(pages, head, k_strides, v_strides)
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
            query_position, num_keys, tables, scale,
            k_strides, v_strides, SIZES, PADS, PRECISION, False,
        )  # fmt: skip
    for first in range(open_keys, seen_keys, KEYS):
        acc, largest, denominator, where = _attend_tile(
            acc, largest, denominator, where, q_turned, q_rest, kv_of_head, packed_row, first,
            query_position, num_keys, tables, scale,
            k_strides, v_strides, SIZES, PADS, PRECISION, True,
        )  # fmt: skip

    denominator = tl.where(overflow, float("nan"), denominator)
    target = token.to(tl.int64) * (num_kv_heads * GROUP) + query_head
    store_rows(out, lse, target, valid, acc, largest, denominator, SIZES, PADS)


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
    heads = kv.k_pages.shape[1]
    rows = plan.block_size_q * (q.shape[1] // heads)
    tile = tile or default_tile(q, rope, rows)
    packed, bases = pack_plan(plan, kv, seqlen_k, len(q), tile.keys)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    _attend[(len(packed) * triton.cdiv(rows, tile.rows), heads)](
        q,
        pages_and_scales(kv),
        packed,
        bases,
        plan.window_starts,
        seqlen_k,
        (rope.cos, rope.sin, rope.cos.stride(0)),
        out,
        lse,
        len(q),
        packed.shape[2],
        plan.local_tokens,
        softmax_scale * LOG2_E.value,
        **attending_options(q, kv, plan, rope, tile),
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
