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

from ..triton_common import (
    LN_2,
    LOG2_E,
    dot_precision,
    require_launchable,
    require_supported,
    rotated_rows,
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


@triton.jit
def _vote(
    q,
    k_pages,
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
    rows = rows.to(k_pages.dtype.element_ty)

    num_keys = tl.load(seqlen_k)
    used_pages = tl.minimum(tl.cdiv(num_keys, PAGE_SIZE), num_pages)
    share = tl.cdiv(tl.cdiv(used_pages, PAGES), tl.num_programs(1)) * PAGES
    start = tl.minimum(split * share, used_pages)
    end = tl.minimum(start + share, used_pages)
    key = tl.arange(0, KEYS)
    channel = tl.arange(0, D_PAD)
    small = tl.arange(0, PAGES)
    keys_of_head = k_pages + head * k_strides[1] + (key % PAGE_SIZE) * k_strides[2]
    target = page_max + (token.to(tl.int64) * num_heads + query_head) * num_pages
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    slot = tl.load(
        page_table + start + key // PAGE_SIZE, mask=start + key // PAGE_SIZE < end, other=0
    )
    for first in range(start, end, PAGES):
        page = first + key // PAGE_SIZE
        at = (keys_of_head + slot.to(tl.int64) * k_strides[0])[:, None] + channel[None, :]
        if D_PAD != HEAD_DIM:
            keys = tl.load(at, mask=(channel < HEAD_DIM)[None, :], other=0.0)
        else:
            keys = tl.load(at)
        # Fetched a step early, so that the compiler can prefetch the keys themselves.
        slot = tl.load(page_table + page + PAGES, mask=page + PAGES < end, other=0)
        logits = tl.dot(rows, tl.trans(keys), input_precision=PRECISION)
        open_key = (first * PAGE_SIZE + key < num_keys) & (page < end)
        logits = tl.where(open_key[None, :], logits, float("-inf"))
        best = tl.max(tl.reshape(logits, [ROWS, PAGES, PAGE_SIZE]), axis=2) * scale
        here = (first + small)[None, :]
        tl.store(target[:, None] + here, best, mask=valid[:, None] & (here < end))
        # The first page of a tile always holds a key: the maximum is finite.
        new_largest = tl.maximum(largest, tl.max(best, axis=1))
        total = total * tl.math.exp2((largest - new_largest) * LOG2_E)
        total += tl.sum(tl.math.exp2((best - new_largest[:, None]) * LOG2_E), axis=1)
        largest = new_largest
    lse = largest + tl.math.log2(total) * LN_2
    lse = tl.where(start < end, lse, float("-inf"))
    at_lse = (split.to(tl.int64) * num_tokens + token) * num_heads + query_head
    tl.store(partial_lse + at_lse, lse, mask=valid)

    nothing = tl.full([ROWS, PAGES], float("-inf"), dtype=tl.float32)
    step = tl.num_programs(1) * PAGES
    for first in range(used_pages + split * PAGES, num_pages, step):
        here = (first + small)[None, :]
        tl.store(target[:, None] + here, nothing, mask=valid[:, None] & (here < num_pages))


def default_tile(rows: int, num_kv_heads: int, num_pages: int) -> Tile:
    """Rows of 64 to 128 a program and about two programs a multiprocessor."""
    tile_rows = min(128, max(64, triton.next_power_of_2(rows)))
    programs = triton.cdiv(rows, tile_rows) * num_kv_heads
    return Tile(tile_rows, 128, min(triton.cdiv(264, programs), num_pages), 4, num_stages=3)


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
    num_pages = len(kv.page_table)
    tile = tile or default_tile(num_tokens * group, heads, num_pages)
    shape = (num_tokens, num_heads, num_pages)
    page_max = torch.empty(shape, dtype=torch.float32, device=q.device)
    partial_lse = torch.empty((tile.splits, *shape[:2]), dtype=torch.float32, device=q.device)
    _vote[(triton.cdiv(num_tokens * group, tile.rows), tile.splits, heads)](
        q,
        kv.k_pages,
        kv.page_table,
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
