"""Sparse decode attention: keys split over programs, the parts merged by a second kernel.

A program takes an equal share of one query token's packed keys for all heads of a group. The
shares follow from lengths read on the device, so one launch serves every length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..merge_partials.triton_impl import merge_partials
from ..triton_common import (
    LN_2,
    LOG2_E,
    dot_precision,
    load_channels,
    load_rotated,
    pad_channels,
    require_launchable,
    require_supported,
)
from ..types import PagedKV, RopeTables, SparsePlan


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: keys a product, and how many programs share the keys."""

    keys: int
    splits: int
    num_warps: int
    num_stages: int


@triton.jit
def _locate(
    position, base, window_start, num_keys, chosen, page_table,
    SINK_TOKENS: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Slot and token within it of packed positions; slot 0 past the last key."""
    is_selected = (position >= SINK_TOKENS) & (position < base)
    rank = position - SINK_TOKENS
    block = tl.load(chosen + rank // BLOCK_SIZE_K, mask=is_selected, other=0)
    logical = tl.where(is_selected, block * BLOCK_SIZE_K + rank % BLOCK_SIZE_K, position)
    logical = tl.where(position >= base, window_start + position - base, logical)
    slot = tl.load(page_table + logical // PAGE_SIZE, mask=position < num_keys, other=0)
    return slot.to(tl.int64), logical % PAGE_SIZE


@triton.jit
def _decode(
    q,
    k_pages,
    v_pages,
    page_table,
    block_indices,
    window_starts,
    seqlen_k,
    cos,
    sin,
    outs,
    lses,
    num_tokens,
    num_selected,
    cos_stride,
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
):
    HALF: tl.constexpr = SIZES[0]
    HEAD_DIM: tl.constexpr = SIZES[1]
    D_PAD: tl.constexpr = PADS[2]
    ROWS: tl.constexpr = PADS[4]
    split = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    row = tl.arange(0, ROWS)
    valid = row < GROUP
    query_head = head * GROUP + row
    target = (split.to(tl.int64) * num_tokens + token) * num_heads + query_head

    window_start = tl.load(window_starts + token)
    chosen = block_indices + token.to(tl.int64) * index_strides[0] + head * index_strides[1]
    entry = tl.arange(0, PADS[3])
    indices = tl.load(chosen + entry, mask=entry < num_selected, other=-1)
    base = SINK_TOKENS + tl.sum((indices >= 0).to(tl.int32), axis=0) * SIZES[2]
    base = tl.where(window_start > 0, base, 0)
    query_position = base + tl.load(seqlen_k) - num_tokens + token - window_start
    # A plan that broke its promise of local_tokens must not look like an answer.
    overflow = query_position >= local_tokens
    num_keys = tl.minimum(query_position + 1, local_tokens)
    share = tl.cdiv(tl.cdiv(num_keys, KEYS), tl.num_programs(0)) * KEYS
    start = split * share
    end = tl.minimum(start + share, num_keys)
    if start >= end:
        tl.store(lses + target, tl.full([ROWS], float("-inf"), tl.float32), mask=valid)
        return

    q_rows = q + token.to(tl.int64) * q_strides[0] + query_head.to(tl.int64) * q_strides[1]
    position = tl.minimum(query_position, local_tokens - 1) + tl.zeros_like(row)
    q_turned = load_rotated(q_rows, valid, cos, sin, position, cos_stride, HALF, PADS[0], True)
    q_rest = q_turned
    if PADS[1] > 0:
        q_rest = load_channels(q_rows, valid, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], True)
    acc = tl.zeros([ROWS, D_PAD], dtype=tl.float32)
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    denominator = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(start, end, KEYS):
        key = first + tl.arange(0, KEYS)
        open_key = key < num_keys
        slot, offset = _locate(
            key, base, window_start, num_keys, chosen, page_table, SINK_TOKENS, SIZES[2], SIZES[3]
        )
        k_rows = k_pages + slot * k_strides[0] + head * k_strides[1] + offset * k_strides[2]
        v_rows = v_pages + slot * v_strides[0] + head * v_strides[1] + offset * v_strides[2]
        # Rows past the last key may never have been written: 0 * NaN must not reach the sum.
        values = load_channels(v_rows, open_key, 0, HEAD_DIM, PADS[2], True)
        turned = load_rotated(
            k_rows, open_key, cos, sin, tl.minimum(key, num_keys - 1), cos_stride,
            HALF, PADS[0], False,
        )  # fmt: skip
        logits = tl.dot(q_turned, tl.trans(turned), input_precision=PRECISION)
        if PADS[1] > 0:
            rest = load_channels(k_rows, open_key, 2 * HALF, HEAD_DIM - 2 * HALF, PADS[1], False)
            logits = tl.dot(q_rest, tl.trans(rest), logits, input_precision=PRECISION)
        logits = tl.where(open_key[None, :], logits, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(logits, axis=1) * scale)
        weights = tl.math.exp2(logits * scale - new_largest[:, None])
        shrink = tl.math.exp2(largest - new_largest)
        denominator = denominator * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(values.dtype), values, acc, input_precision=PRECISION)
        largest = new_largest

    denominator = tl.where(overflow, float("nan"), denominator)
    tl.store(lses + target, (largest + tl.math.log2(denominator)) * LN_2, mask=valid)
    channel = tl.arange(0, D_PAD)
    mask = valid[:, None] & (channel < HEAD_DIM)[None, :]
    tl.store(
        outs + target[:, None] * HEAD_DIM + channel[None, :], acc / denominator[:, None], mask=mask
    )


def default_tile(num_tokens: int, num_kv_heads: int, local_tokens: int) -> Tile:
    """About four programs a multiprocessor of a large GPU, a whole tile of keys at least."""
    wanted = triton.cdiv(528, num_tokens * num_kv_heads)
    return Tile(64, max(1, min(wanted, triton.cdiv(local_tokens, 64))), num_warps=4, num_stages=1)


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts [splits, N, num_heads, head_dim] fp32 and their lse, before the merge."""
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    tile = tile or default_tile(num_tokens, heads, plan.local_tokens)
    half = rope.cos.shape[1] // 2
    rest = head_dim - 2 * half
    group = num_heads // heads
    num_selected = plan.block_indices.shape[2]
    shape = (tile.splits, num_tokens, num_heads, head_dim)
    outs = torch.empty(shape, dtype=torch.float32, device=q.device)
    lses = torch.empty(shape[:3], dtype=torch.float32, device=q.device)
    _decode[(tile.splits, heads, num_tokens)](
        q,
        kv.k_pages,
        kv.v_pages,
        kv.page_table,
        plan.block_indices,
        plan.window_starts,
        seqlen_k,
        rope.cos,
        rope.sin,
        outs,
        lses,
        num_tokens,
        num_selected,
        rope.cos.stride(0),
        plan.local_tokens,
        softmax_scale * LOG2_E.value,
        q_strides=q.stride(),
        k_strides=kv.k_pages.stride(),
        v_strides=kv.v_pages.stride(),
        index_strides=plan.block_indices.stride(),
        GROUP=group,
        SIZES=(half, head_dim, plan.block_size_k, page_size),
        PADS=(
            pad_channels(half),
            pad_channels(rest) if rest else 0,
            pad_channels(head_dim),
            triton.next_power_of_2(max(num_selected, 1)),
            pad_channels(group),
        ),
        SINK_TOKENS=plan.sink_tokens,
        KEYS=tile.keys,
        PRECISION=dot_precision(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return outs, lses


def sparse_decode(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.sparse_decode.sparse_decode`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    outs, lses = launch(q, kv, plan, rope, seqlen_k, softmax_scale)
    return merge_partials(outs, lses, q.dtype)
