"""The page index as one Triton kernel: a program summarises one page of one KV head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import has_slot, head_table, interpreted, load_slots, require_launchable
from ..types import PageIndex


@triton.jit
def summarise_page(
    page,
    head,
    k_pages,
    page_table,
    total,
    summaries,
    scales,
    k_scales,
    num_pages,
    k_strides: tl.constexpr,
    k_scale_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BOUNDS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Summarise the tokens before `total` of one logical page of one KV head, which has a slot."""
    slot = load_slots(page_table, head, page).to(tl.int64)
    token = tl.arange(0, PAGE_SIZE)
    channel = tl.arange(0, D_PAD)
    kept = channel < HEAD_DIM
    valid = (page * PAGE_SIZE + token < total)[:, None]
    at = k_pages + slot * k_strides[0] + head * k_strides[1]
    at = at + token[:, None] * k_strides[2] + channel[None, :]
    keys = tl.load(at, mask=valid & kept[None, :], other=0.0).to(tl.float32)
    row = head.to(tl.int64) * num_pages + page
    if k_pages.dtype.element_ty == tl.float8e4nv:
        keys *= tl.load(k_scales + slot * k_scale_stride + head)
    if BOUNDS:
        first = tl.min(tl.where(valid, keys, float("inf")), axis=0)
        second = tl.max(tl.where(valid, keys, float("-inf")), axis=0)
    else:
        first = tl.sum(keys, axis=0) / tl.minimum(total - page * PAGE_SIZE, PAGE_SIZE)
        second = first
    if SCALED:
        largest = tl.maximum(tl.abs(first), tl.abs(second))
        scale = tl.max(tl.where(kept, largest, 0.0), axis=0) / 448.0
        scale = tl.where(scale > 0, scale, 1.0)
        tl.store(scales + row, scale)
        first = first / scale
        second = second / scale
    target = summaries + row * ((1 + BOUNDS) * HEAD_DIM) + channel
    tl.store(target, first.to(summaries.dtype.element_ty), mask=kept)
    if BOUNDS:
        tl.store(target + HEAD_DIM, second.to(summaries.dtype.element_ty), mask=kept)


@triton.jit
def _summarise(
    k_pages,
    page_table,
    seqlen_k,
    summaries,
    scales,
    k_scales,
    num_new_tokens,
    num_pages,
    k_strides: tl.constexpr,
    k_scale_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BOUNDS: tl.constexpr,
    SCALED: tl.constexpr,
):
    total = tl.load(seqlen_k)
    page = tl.maximum(total - num_new_tokens, 0) // PAGE_SIZE + tl.program_id(0)
    head = tl.program_id(1)
    wanted = (page * PAGE_SIZE < total) & (page < num_pages)
    if has_slot(page_table, head, page, wanted):
        summarise_page(
            page, head, k_pages, page_table, total, summaries, scales, k_scales, num_pages,
            k_strides, k_scale_stride, HEAD_DIM, D_PAD, PAGE_SIZE, BOUNDS, SCALED,
        )  # fmt: skip


def update_page_index_(
    index: PageIndex,
    k_pages: torch.Tensor,
    page_table: torch.Tensor,
    seqlen_k: torch.Tensor,
    num_new_tokens: int,
    k_scales: torch.Tensor | None = None,
) -> None:
    """See `hipcli.kernels.page_index.update_page_index_`."""
    require_launchable(k_pages, index.summaries)
    if interpreted() and index.scales is not None:
        raise NotImplementedError("Triton's interpreter does not round to float8_e4m3fn")
    heads, num_pages, _, head_dim = index.summaries.shape
    # The newest tokens may start in the middle of a page.
    touched = min(triton.cdiv(num_new_tokens, index.page_size) + 1, num_pages)
    _summarise[(touched, heads)](
        k_pages,
        head_table(page_table),
        seqlen_k,
        index.summaries,
        index.scales if index.scales is not None else index.summaries,
        k_scales if k_scales is not None else index.summaries,
        num_new_tokens,
        num_pages,
        k_strides=k_pages.stride(),
        k_scale_stride=k_scales.stride(0) if k_scales is not None else 0,
        HEAD_DIM=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        PAGE_SIZE=index.page_size,
        BOUNDS=index.kind == "bounds",
        SCALED=index.scales is not None,
    )
