"""Exact block scores: keys of some candidate pages times the pooled rows of a query block.

Keys are the rows of the product, so the maximum over queries stays inside a thread and its
neighbours, and every K tile serves all heads of its group. The last program of a row may
choose the row's best blocks at once: their scores are still near, and a launch is saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..score_pages.triton_impl import launch_options, padded_rows, pooled_columns
from ..select_blocks.triton_impl import choose, store_blocks
from ..triton_codes import split_e4m3
from ..triton_common import (
    begin,
    head_table,
    last_arrival,
    load_slots,
    pages_and_scales,
    require_launchable,
    require_supported,
    scale_stride,
)
from ..types import PagedKV, RopeTables


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: keys a product, candidate pages a program."""

    block_tokens: int
    pages_per_program: int
    num_warps: int
    num_stages: int


@triton.jit
def _score_blocks(
    q,
    k_pages,
    k_scales,
    page_table,
    candidates,
    table_rows,
    out,
    chosen_blocks,
    counters,
    num_tokens,
    num_candidates,
    pages_per_program,
    num_selected,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    candidate_strides: tl.constexpr,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    SCORES_PAD: tl.constexpr,
    SELECTED_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    HEAD_DIM: tl.constexpr = POOL[1]
    D_PAD: tl.constexpr = POOL[2]
    head = tl.program_id(1)
    block = tl.program_id(2)
    slot_of_row = tl.arange(0, ROWS)
    rows = pooled_columns(
        q, q_strides, block + tl.zeros_like(slot_of_row), slot_of_row, head, num_tokens,
        table_rows, POOL,
    )  # fmt: skip
    QUANTISED: tl.constexpr = k_pages.dtype.element_ty == tl.float8e4nv
    if QUANTISED:
        high, low, row_scale = split_e4m3(rows)
        columns = tl.trans(high)
        lower = tl.trans(low)
    else:
        columns = tl.trans(rows.to(k_pages.dtype.element_ty))
    PER_PAGE: tl.constexpr = PAGE_SIZE // BLOCK_K
    BLOCKS: tl.constexpr = BLOCK_T // BLOCK_K
    listed = candidates + block.to(tl.int64) * candidate_strides[0] + head * candidate_strides[1]
    row = block.to(tl.int64) * tl.num_programs(1) + head
    target = row * num_candidates * PER_PAGE + out
    start = tl.program_id(0) * pages_per_program
    end = tl.minimum(start + pages_per_program, num_candidates)
    token = tl.arange(0, BLOCK_T)
    small = tl.arange(0, BLOCKS)
    channel = tl.arange(0, D_PAD)
    keys_of_head = k_pages + head * k_strides[1]
    number = (start * PAGE_SIZE + token) // PAGE_SIZE
    page = tl.load(listed + number, mask=number < end, other=-1)
    slot = load_slots(page_table, head, page, page >= 0)
    for tile in range(start * PAGE_SIZE, end * PAGE_SIZE, BLOCK_T):
        at = keys_of_head + slot.to(tl.int64) * k_strides[0]
        at += ((tile + token) % PAGE_SIZE) * k_strides[2]
        if D_PAD != HEAD_DIM:
            keys = tl.load(
                at[:, None] + channel[None, :], mask=(channel < HEAD_DIM)[None, :], other=0.0
            )
        else:
            keys = tl.load(at[:, None] + channel[None, :])
        scores = tl.dot(keys, columns, input_precision=PRECISION)
        if QUANTISED:
            scores = tl.dot(keys, lower, scores)
        best = tl.max(scores, axis=1)
        if QUANTISED:
            scale = tl.load(k_scales + head + slot.to(tl.int64) * SCALE_STRIDE)
            best *= scale * row_scale
        best = tl.where(page < 0, float("-inf"), best)
        # Fetched a step early, so that the compiler can prefetch the keys themselves.
        number = (tile + BLOCK_T + token) // PAGE_SIZE
        page = tl.load(listed + number, mask=number < end, other=-1)
        slot = load_slots(page_table, head, page, page >= 0)
        best = tl.max(tl.reshape(best, [BLOCKS, BLOCK_K]), axis=1)
        at_block = tile // BLOCK_K + small
        tl.store(target + at_block, best, mask=at_block < end * PER_PAGE)

    if SELECTED_PAD > 0:  # noqa: SIM102 (this one is decided when the kernel is compiled)
        if last_arrival(counters + row, tl.num_programs(0)):
            position = tl.arange(0, SCORES_PAD)
            # Other programs wrote these: the first-level cache is passed by.
            score = tl.load(
                target + position, mask=position < num_candidates * PER_PAGE,
                other=float("-inf"), cache_modifier=".cg",
            )  # fmt: skip
            chosen, rank, k = choose(score, num_selected)
            store_blocks(
                chosen_blocks + row * num_selected, chosen, rank, k, position, listed, PER_PAGE,
                num_selected, SELECTED_PAD,
            )  # fmt: skip


def default_tile(rows: int, num_blocks: int, num_candidates: int) -> Tile:
    """A few pages a program in decode; in prefill the whole list."""
    if num_blocks * rows <= 64:
        return Tile(64, 4, num_warps=4, num_stages=3)
    return Tile(128, max(2, num_candidates), num_warps=4, num_stages=3)


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    candidate_pages: torch.Tensor,
    rope: RopeTables,
    distance: int,
    sizes: tuple[int, int, int],
    tile: Tile | None = None,
    num_selected: int = 0,
    counters: torch.Tensor | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Score with sizes (block_size_q, block_size_k, query_stride) and a given tile.

    Returns the scores; with num_selected > 0 the best blocks instead, as `select_blocks` does.
    `counters` are as many zeros as rows, and stay so; None makes them. `early` as in
    `triton_common.begin`.
    """
    block_size_q, block_size_k, query_stride = sizes
    page_size = kv.k_pages.shape[2]
    num_blocks, heads, num_candidates = candidate_pages.shape
    rows = padded_rows(q, heads, block_size_q, query_stride)
    tile = tile or default_tile(rows, num_blocks, num_candidates)
    num_scores = num_candidates * page_size // block_size_k
    out = torch.empty((num_blocks, heads, num_scores), dtype=torch.float32, device=q.device)
    chosen = torch.empty((num_blocks, heads, num_selected), dtype=torch.int32, device=q.device)
    if counters is None:
        zeros = num_blocks * heads if num_selected else 0
        counters = torch.zeros(zeros, dtype=torch.int32, device=q.device)
    grid = (triton.cdiv(num_candidates, tile.pages_per_program), heads, num_blocks)
    _score_blocks[grid](
        q,
        kv.k_pages,
        pages_and_scales(kv)[2],
        head_table(kv.page_table),
        candidate_pages,
        (rope.cos[distance], rope.sin[distance]),
        out,
        chosen,
        counters,
        len(q),
        num_candidates,
        tile.pages_per_program,
        num_selected,
        k_strides=kv.k_pages.stride(),
        SCALE_STRIDE=scale_stride(kv),
        candidate_strides=candidate_pages.stride(),
        BLOCK_T=tile.block_tokens,
        BLOCK_K=block_size_k,
        PAGE_SIZE=page_size,
        SCORES_PAD=triton.next_power_of_2(num_scores),
        SELECTED_PAD=triton.next_power_of_2(num_selected) if num_selected else 0,
        **launch_options(
            q, heads, rope, (block_size_q, query_stride), (tile.num_warps, tile.num_stages), early
        ),
    )
    return chosen if num_selected else out


def score_blocks(
    q: torch.Tensor,
    kv: PagedKV,
    candidate_pages: torch.Tensor,
    rope: RopeTables,
    distance: int,
    block_size_q: int,
    block_size_k: int,
    query_stride: int,
) -> torch.Tensor:
    """See `hipcli.kernels.score_blocks.score_blocks`."""
    require_launchable(q, kv.k_pages)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    sizes = (block_size_q, block_size_k, query_stride)
    return launch(q, kv, candidate_pages, rope, distance, sizes)
