"""The vote: keys stream once through matrix products with all rows of a KV head.

A program takes a run of pages of one KV head. K tiles go from memory to the matrix units
without passing registers; maxima over a page's keys stay inside a thread and its neighbours.
Programs of different row tiles but the same pages are neighbours, so K comes from memory once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..triton_codes import split_e4m3
from ..triton_common import (
    LN_2,
    LOG2_E,
    dot_precision,
    head_table,
    load_channels,
    load_slots,
    pages_and_scales,
    require_launchable,
    require_supported,
    rotated_rows,
    scale_stride,
    shared_bytes,
)
from ..types import PagedKV, RopeTables


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: most rows a program, keys a product, runs of pages a KV head."""

    rows: int
    keys: int
    splits: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@triton.jit
def _vote_tile(
    largest,
    total,
    rows,
    at,
    scale_at,
    open_key,
    target,
    page,
    end,
    valid,
    scale,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Score keys at `at` [KEYS], store each page's maximum, and take it into the running sum.

    `rows` is one tile, or for keys in fp8 two whose sum they are; `scale_at` [PAGES] then points
    to the pages' scales.
    """
    PAGES: tl.constexpr = at.shape[0] // PAGE_SIZE
    QUANTISED: tl.constexpr = at.dtype.element_ty == tl.float8e4nv
    ROWS: tl.constexpr = rows[0].shape[0]
    keys = tl.trans(load_channels(at, open_key, 0, HEAD_DIM, rows[0].shape[1], False))
    logits = tl.dot(rows[0], keys, input_precision=PRECISION)
    if QUANTISED:
        logits = tl.dot(rows[1], keys, logits)
    if MASKED:
        logits = tl.where(open_key[None, :], logits, float("-inf"))
    best = tl.max(tl.reshape(logits, [ROWS, PAGES, PAGE_SIZE]), axis=2) * scale
    if QUANTISED:
        # A page past the end is -inf already, and must stay it.
        page_scale = tl.load(scale_at, mask=page + tl.arange(0, PAGES) < end, other=1.0)
        best *= page_scale[None, :]
    here = (page + tl.arange(0, PAGES))[None, :]
    mask = valid[:, None]
    if MASKED:
        mask = mask & (here < end)
    tl.store(target[:, None] + here, best, mask=mask)
    # The first page of a tile always holds a key: the maximum is finite.
    new_largest = tl.maximum(largest, tl.max(best, axis=1))
    total = total * tl.math.exp2((largest - new_largest) * LOG2_E)
    total += tl.sum(tl.math.exp2((best - new_largest[:, None]) * LOG2_E), axis=1)
    return new_largest, total


@triton.jit
def _scale_at(
    scales,
    page_table,
    head,
    first,
    end,
    PAGES: tl.constexpr,
    STRIDE: tl.constexpr,
    QUANTISED: tl.constexpr,
):
    """Pointers [PAGES] to the scales of pages first..; for keys without scales no pointers."""
    page = first + tl.arange(0, PAGES)
    if QUANTISED:
        slot = load_slots(page_table, head, page, page < end)
        return scales + head + slot.to(tl.int64) * STRIDE
    else:
        return page


@triton.jit
def _vote(
    q,
    k_pages,
    k_scales,
    page_table,
    seqlen_k,
    cos_row,
    sin_row,
    page_max,
    partial_lse,
    num_tokens,
    num_pages,
    scale,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    ROTARY: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    PAGES: tl.constexpr = KEYS // PAGE_SIZE
    QUANTISED: tl.constexpr = k_pages.dtype.element_ty == tl.float8e4nv
    split = tl.program_id(1)
    head = tl.program_id(2)
    num_heads = tl.num_programs(2) * GROUP
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = row < num_tokens * GROUP
    # Rows past the last one repeat row 0 and are not stored.
    token = tl.where(valid, row // GROUP, 0)
    query_head = head * GROUP + tl.where(valid, row % GROUP, 0)
    rows = rotated_rows(
        q, q_strides, token, token + 1, query_head, cos_row, sin_row, HEAD_DIM, D_PAD, ROTARY, 1
    )
    if QUANTISED:
        high, low, row_scale = split_e4m3(rows)
        rows = (high, low)
        scale *= row_scale
    else:
        rows = (rows.to(k_pages.dtype.element_ty),)

    num_keys = tl.load(seqlen_k)
    used_pages = tl.minimum(tl.cdiv(num_keys, PAGE_SIZE), num_pages)
    share = tl.cdiv(tl.cdiv(used_pages, PAGES), tl.num_programs(1)) * PAGES
    start = tl.minimum(split * share, used_pages)
    end = tl.minimum(start + share, used_pages)
    # Whole tiles of whole pages need no mask.
    whole = tl.maximum(tl.minimum(end, num_keys // PAGE_SIZE) - start, 0) // PAGES * PAGES
    key = tl.arange(0, KEYS)
    keys_of_head = k_pages + head * k_strides[1] + (key % PAGE_SIZE) * k_strides[2]
    target = page_max + (token.to(tl.int64) * num_heads + query_head) * num_pages
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    page = start + key // PAGE_SIZE
    slot = load_slots(page_table, head, page, page < end)
    scale_at = _scale_at(k_scales, page_table, head, start, end, PAGES, SCALE_STRIDE, QUANTISED)
    for first in range(start, start + whole, PAGES):
        at = keys_of_head + slot.to(tl.int64) * k_strides[0]
        scale_here = scale_at
        # Fetched a step early, so that the compiler can prefetch the keys themselves.
        page = first + PAGES + key // PAGE_SIZE
        slot = load_slots(page_table, head, page, page < end)
        scale_at = _scale_at(
            k_scales, page_table, head, first + PAGES, end, PAGES, SCALE_STRIDE, QUANTISED
        )
        largest, total = _vote_tile(
            largest, total, rows, at, scale_here, key < KEYS, target, first, end, valid, scale,
            HEAD_DIM, PAGE_SIZE, PRECISION, False,
        )  # fmt: skip
    for first in range(start + whole, end, PAGES):
        page = first + key // PAGE_SIZE
        slot = load_slots(page_table, head, page, page < end)
        at = keys_of_head + slot.to(tl.int64) * k_strides[0]
        open_key = (first * PAGE_SIZE + key < num_keys) & (page < end)
        scale_at = _scale_at(k_scales, page_table, head, first, end, PAGES, SCALE_STRIDE, QUANTISED)
        largest, total = _vote_tile(
            largest, total, rows, at, scale_at, open_key, target, first, end, valid, scale,
            HEAD_DIM, PAGE_SIZE, PRECISION, True,
        )  # fmt: skip
    lse = largest + tl.math.log2(total) * LN_2
    lse = tl.where(start < end, lse, float("-inf"))
    at_lse = (split.to(tl.int64) * num_tokens + token) * num_heads + query_head
    tl.store(partial_lse + at_lse, lse, mask=valid)

    nothing = tl.full([ROWS, PAGES], float("-inf"), dtype=tl.float32)
    step = tl.num_programs(1) * PAGES
    for first in range(used_pages + split * PAGES, num_pages, step):
        here = (first + tl.arange(0, PAGES))[None, :]
        tl.store(target[:, None] + here, nothing, mask=valid[:, None] & (here < num_pages))


# rows, keys, warps, stages, registers: from most to least reuse of a key.
SIZES = (
    (256, 64, 8, 2, 128),
    (128, 64, 4, 3, None),
    (64, 128, 4, 3, None),
    (64, 64, 4, 2, None),
    (32, 64, 4, 1, None),
    (16, 16, 4, 1, None),
)


def default_tile(q: torch.Tensor, num_kv_heads: int, page_size: int, num_pages: int) -> Tile:
    """The most rows that are filled and fit, and about two programs a multiprocessor."""
    rows = len(q) * q.shape[1] // num_kv_heads
    row_bytes = triton.next_power_of_2(q.shape[2]) * q.element_size()
    for tile_rows, keys, num_warps, num_stages, max_registers in SIZES:
        needed = (tile_rows + num_stages * max(keys, page_size)) * row_bytes + 4096
        filled = tile_rows <= max(64, triton.next_power_of_2(rows))
        if filled and needed <= shared_bytes(q.device):
            programs = triton.cdiv(rows, tile_rows) * num_kv_heads
            splits = min(triton.cdiv(264, programs), num_pages)
            # A wider head's tile fills a multiprocessor alone: it may have all registers.
            limit = max_registers if row_bytes <= 256 else None
            return Tile(tile_rows, keys, splits, num_warps, num_stages, limit)
    raise NotImplementedError(
        f"head_dim {q.shape[2]} in {q.dtype} with pages of {page_size}: no tile fits the "
        f"{shared_bytes(q.device)} bytes of shared memory of this device"
    )


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    distance: int,
    softmax_scale: float,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vote with a given tile."""
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    group = num_heads // heads
    num_pages = kv.page_table.shape[-1]
    tile = tile or default_tile(q, heads, page_size, num_pages)
    shape = (num_tokens, num_heads, num_pages)
    page_max = torch.empty(shape, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((tile.splits, *shape[:2]), dtype=torch.float32, device=q.device)
    _vote[(triton.cdiv(num_tokens * group, tile.rows), tile.splits, heads)](
        q,
        kv.k_pages,
        pages_and_scales(kv)[2],
        head_table(kv.page_table),
        seqlen_k,
        rope.cos[distance],
        rope.sin[distance],
        page_max,
        partial_lse,
        num_tokens,
        num_pages,
        softmax_scale,
        q_strides=q.stride(),
        k_strides=kv.k_pages.stride(),
        SCALE_STRIDE=scale_stride(kv),
        GROUP=group,
        HEAD_DIM=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        ROTARY=rope.cos.shape[1],
        ROWS=tile.rows,
        KEYS=max(tile.keys, page_size),
        PAGE_SIZE=page_size,
        PRECISION=dot_precision(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        maxnreg=tile.max_registers,
    )
    return page_max, torch.logsumexp(partial_lse, dim=0)


def vote(
    q: torch.Tensor,
    kv: PagedKV,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    distance: int,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.vote.vote`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    return launch(q, kv, seqlen_k, rope, distance, softmax_scale)
