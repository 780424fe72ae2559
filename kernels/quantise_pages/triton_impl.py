"""Quantising pages as one Triton kernel: a program writes the keys or values of one page and head.

Where the new tokens stand is read from the device, so a decode step that appends one token is
the same launch at every length, and a CUDA graph can hold it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_codes import least_scale, reciprocal, to_e4m3
from ..triton_common import (
    has_slot,
    head_table,
    load_slots,
    require_launchable,
)
from ..types import PagedKV


@triton.jit
def _write_page(
    rows,
    codes,
    scale_at,
    first,
    count,
    row_stride: tl.constexpr,
    code_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Tokens [first, first + count) of a page become `count` rows; its scale may grow."""
    token = tl.arange(0, PAGE_SIZE)
    channel = tl.arange(0, D_PAD)
    kept = (channel < HEAD_DIM)[None, :]
    is_new = ((token >= first) & (token < first + count))[:, None] & kept
    at = (token - first).to(tl.int64)[:, None] * row_stride + channel[None, :]
    new = tl.load(rows + at, mask=is_new, other=0.0).to(tl.float32)
    scale = least_scale(tl.max(tl.max(tl.abs(new), axis=1), axis=0))
    at_code = codes + token[:, None] * code_stride + channel[None, :]
    if first > 0:
        before = tl.load(scale_at)
        scale = tl.maximum(scale, before)
        if scale > before:
            is_old = (token < first)[:, None] & kept
            old = tl.load(at_code, mask=is_old, other=0.0).to(tl.float32)
            tl.store(at_code, to_e4m3(old * (before * reciprocal(scale))), mask=is_old)
    tl.store(at_code, to_e4m3(new * reciprocal(scale)), mask=is_new)
    # Every thread must have read the old scale before one of them replaces it.
    tl.debug_barrier()
    tl.store(scale_at, scale)


@triton.jit
def _quantise(
    new,
    pages,
    scales,
    page_table,
    seqlen_k,
    num_new_tokens,
    num_pages,
    k_strides: tl.constexpr,
    v_strides: tl.constexpr,
    page_strides: tl.constexpr,
    scale_strides: tl.constexpr,
    SIZES: tl.constexpr,
):
    HEAD_DIM: tl.constexpr = SIZES[0]
    D_PAD: tl.constexpr = SIZES[1]
    PAGE_SIZE: tl.constexpr = SIZES[2]
    head = tl.program_id(1)
    total = tl.load(seqlen_k)
    start = tl.maximum(total - num_new_tokens, 0)
    page = start // PAGE_SIZE + tl.program_id(0)
    wanted = (page * PAGE_SIZE < total) & (page < num_pages)
    if not has_slot(page_table, head, page, wanted):
        return
    slot = load_slots(page_table, head, page).to(tl.int64)
    first = tl.maximum(start - page * PAGE_SIZE, 0)
    count = tl.minimum(total, (page + 1) * PAGE_SIZE) - page * PAGE_SIZE - first
    row = (page * PAGE_SIZE + first - start).to(tl.int64)
    scale_at = slot * scale_strides[0] + head
    if tl.program_id(2) == 0:
        _write_page(
            new[0] + row * k_strides[0] + head * k_strides[1],
            pages[0] + slot * page_strides[0][0] + head * page_strides[0][1],
            scales[0] + scale_at, first, count, k_strides[0], page_strides[0][2],
            HEAD_DIM, D_PAD, PAGE_SIZE,
        )  # fmt: skip
    else:
        _write_page(
            new[1] + row * v_strides[0] + head * v_strides[1],
            pages[1] + slot * page_strides[1][0] + head * page_strides[1][1],
            scales[1] + scale_at, first, count, v_strides[0], page_strides[1][2],
            HEAD_DIM, D_PAD, PAGE_SIZE,
        )  # fmt: skip


def quantise_pages_(kv: PagedKV, k: torch.Tensor, v: torch.Tensor, seqlen_k: torch.Tensor) -> None:
    """See `hipcli.kernels.quantise_pages.quantise_pages_`."""
    require_launchable(k, kv.k_pages)
    assert kv.k_scales is not None and kv.v_scales is not None
    heads, page_size, head_dim = kv.k_pages.shape[1:]
    # The newest tokens may start in the middle of a page.
    num_pages = kv.page_table.shape[-1]
    touched = min(triton.cdiv(len(k) - 1, page_size) + 1, num_pages)
    _quantise[(touched, heads, 2)](
        (k, v),
        (kv.k_pages, kv.v_pages),
        (kv.k_scales, kv.v_scales),
        head_table(kv.page_table),
        seqlen_k,
        len(k),
        num_pages,
        k_strides=k.stride(),
        v_strides=v.stride(),
        page_strides=(kv.k_pages.stride(), kv.v_pages.stride()),
        scale_strides=kv.k_scales.stride(),
        SIZES=(head_dim, triton.next_power_of_2(head_dim), page_size),
    )
