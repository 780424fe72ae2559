"""Page scores as matrix products: a tile of summaries times the rows of some query blocks.

Pages are the rows of the product and queries its columns, so the maximum over queries stays
inside a thread and its three neighbours. A page's box bound is two products: the negative
part of the queries with the minima, the positive part with the maxima.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..page_index.triton_impl import summarise_page
from ..triton_common import (
    begin,
    has_slot,
    head_table,
    pages_and_scales,
    require_launchable,
    require_supported,
    scale_stride,
)
from ..triton_rows import launch_options, padded_rows, pooled_columns
from ..types import PagedKV, PageIndex, RopeTables


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch: pages a product, query rows a program, pages a program."""

    block_pages: int
    rows: int
    pages_per_program: int
    num_warps: int
    num_stages: int


@triton.jit
def _summarise_newest(
    newest,
    head,
    summaries,
    scales,
    num_pages,
    k_strides: tl.constexpr,
    K_SCALE_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BOUNDS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Summarise the page of the newest token, if it has a slot."""
    k_pages, k_scales, table, table_stride, seqlen_k = newest
    page_table = (table, table_stride)
    total = tl.load(seqlen_k)
    last = (total - 1) // PAGE_SIZE
    if has_slot(page_table, head, last, (last >= 0) & (last < num_pages)):
        summarise_page(
            last, head, k_pages, page_table, total, summaries, scales, k_scales,
            num_pages, k_strides, K_SCALE_STRIDE, HEAD_DIM, D_PAD, PAGE_SIZE, BOUNDS, SCALED,
        )  # fmt: skip


@triton.jit
def _score_pages(
    q,
    summaries,
    scales,
    window_starts,
    table_rows,
    out,
    newest,
    num_tokens,
    num_blocks,
    num_pages,
    sink_pages,
    pages_per_program,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    K_SCALE_STRIDE: tl.constexpr,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    Q_BLOCKS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BOUNDS: tl.constexpr,
    SCALED: tl.constexpr,
    HAS_NEWEST: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    begin(EARLY)
    HEAD_DIM: tl.constexpr = POOL[1]
    D_PAD: tl.constexpr = POOL[2]
    head = tl.program_id(2)
    if HAS_NEWEST:  # noqa: SIM102 (this one is decided when the kernel is compiled)
        # The last program of a head scores nothing: it summarises the page of the newest token.
        if tl.program_id(1) == tl.num_programs(1) - 1:
            _summarise_newest(
                newest, head, summaries, scales, num_pages,
                k_strides, K_SCALE_STRIDE, HEAD_DIM, D_PAD, PAGE_SIZE, BOUNDS, SCALED,
            )  # fmt: skip
            return
    column = tl.arange(0, Q_BLOCKS * ROWS)
    block = tl.program_id(0) * Q_BLOCKS + tl.arange(0, Q_BLOCKS)
    starts = tl.load(window_starts + block, mask=block < num_blocks, other=0)
    rows = pooled_columns(
        q, q_strides, tl.program_id(0) * Q_BLOCKS + column // ROWS, column % ROWS, head,
        num_tokens, table_rows, POOL,
    )  # fmt: skip
    upper = rows
    if BOUNDS:
        upper = tl.maximum(rows, 0.0)
    # fp8 becomes fp16 in one instruction and bf16 in three; fp16 holds its values exactly.
    NARROW: tl.constexpr = SCALED and q.dtype.element_ty == tl.bfloat16
    OPERAND: tl.constexpr = tl.float16 if NARROW else q.dtype.element_ty
    upper = tl.trans(upper.to(OPERAND))
    lower = tl.trans(tl.minimum(rows, 0.0).to(OPERAND))
    last_page = starts // PAGE_SIZE
    start = tl.program_id(1) * pages_per_program
    end = tl.minimum(start + pages_per_program, num_pages)
    # Tiles wholly inside the window are not scored, only filled.
    live_end = tl.minimum(end, tl.max(last_page, axis=0))
    target = out + (block.to(tl.int64) * tl.num_programs(2) + head) * num_pages
    page = tl.arange(0, BLOCK_P)
    channel = tl.arange(0, D_PAD)
    at = summaries + head.to(tl.int64) * num_pages * ((1 + BOUNDS) * HEAD_DIM)
    at = at + page[:, None] * ((1 + BOUNDS) * HEAD_DIM) + channel[None, :]
    for tile in range(start, live_end, BLOCK_P):
        at_tile = at + tile * ((1 + BOUNDS) * HEAD_DIM)
        valid = (tile + page < end)[:, None]
        if D_PAD != HEAD_DIM:
            valid = valid & (channel < HEAD_DIM)[None, :]
        first = tl.load(at_tile, mask=valid, other=0.0).to(OPERAND)
        if BOUNDS:
            second = tl.load(at_tile + HEAD_DIM, mask=valid, other=0.0).to(OPERAND)
            scores = tl.dot(first, lower, input_precision=PRECISION)
            scores = tl.dot(second, upper, scores, input_precision=PRECISION)
        else:
            scores = tl.dot(first, upper, input_precision=PRECISION)
        if Q_BLOCKS == 1:
            best = tl.max(scores, axis=1)[:, None]
        else:
            best = tl.max(tl.reshape(scores, [BLOCK_P, Q_BLOCKS, ROWS]), axis=2)
        if SCALED:
            scale = scales + head.to(tl.int64) * num_pages + tile + page
            best = best * tl.load(scale, mask=tile + page < end, other=0.0)[:, None]
        number = (tile + page)[:, None]
        candidate = (number >= sink_pages) & (number < last_page[None, :])
        best = tl.where(candidate, best, float("-inf"))
        mask = (number < end) & (block < num_blocks)[None, :]
        tl.store(target[None, :] + number, best, mask=mask)

    nothing = tl.full([BLOCK_P, Q_BLOCKS], float("-inf"), dtype=tl.float32)
    done = start + tl.cdiv(tl.maximum(live_end - start, 0), BLOCK_P) * BLOCK_P
    for tile in range(done, end, BLOCK_P):
        number = (tile + page)[:, None]
        mask = (number < end) & (block < num_blocks)[None, :]
        tl.store(target[None, :] + number, nothing, mask=mask)


# Averaged queries of a block, times the heads of a group, that a multiprocessor has room for.
MAX_ROWS = 256


def default_tile(rows: int, num_blocks: int, heads: int, num_pages: int) -> Tile:
    """Tile for `rows` padded rows a query block: wide for prefill, many programs for decode."""
    if rows > 128:
        # The queries alone take half of the shared memory, for bounds in two parts.
        return Tile(64, rows, min(4096, num_pages), num_warps=8, num_stages=2)
    if num_blocks * rows > 32:
        return Tile(128, max(rows, 128), min(4096, num_pages), num_warps=8, num_stages=2)
    # Few pages a program while that leaves them all resident, then more pages, prefetched.
    for pages_per_program in (64, 128):
        if triton.cdiv(num_pages, pages_per_program) * heads <= 264:
            return Tile(64, rows, pages_per_program, num_warps=4, num_stages=2)
    return Tile(64, rows, 256, num_warps=4, num_stages=3)


def launch(
    q: torch.Tensor,
    index: PageIndex,
    window_starts: torch.Tensor,
    rope: RopeTables,
    distance: int,
    sizes: tuple[int, int, int],
    tile: Tile | None = None,
    newest: tuple[PagedKV, torch.Tensor] | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Score with sizes (block_size_q, query_stride, sink_tokens) and a given tile.

    `newest` = (keys, seqlen_k) also summarises the page of the newest token, which must lie
    in every block's window: it is written while other pages are scored. `early` as in
    `triton_common.begin`.
    """
    block_size_q, query_stride, sink_tokens = sizes
    heads, num_pages = index.summaries.shape[:2]
    num_blocks = len(window_starts)
    rows = padded_rows(q, heads, block_size_q, query_stride)
    tile = tile or default_tile(rows, num_blocks, heads, num_pages)
    q_blocks = max(1, tile.rows // rows)
    out = torch.empty((num_blocks, heads, num_pages), dtype=torch.float32, device=q.device)
    chunks = triton.cdiv(num_pages, tile.pages_per_program) + (newest is not None)
    grid = (triton.cdiv(num_blocks, q_blocks), chunks, heads)
    keys, length = newest or (PagedKV(q, q, window_starts), window_starts)
    _score_pages[grid](
        q,
        index.summaries,
        index.scales if index.scales is not None else out,
        window_starts,
        (rope.cos[distance], rope.sin[distance]),
        out,
        (keys.k_pages, pages_and_scales(keys)[2], *head_table(keys.page_table), length),
        len(q),
        num_blocks,
        num_pages,
        sink_tokens // index.page_size,
        tile.pages_per_program,
        k_strides=keys.k_pages.stride(),
        K_SCALE_STRIDE=scale_stride(keys),
        Q_BLOCKS=q_blocks,
        BLOCK_P=tile.block_pages,
        BOUNDS=index.kind == "bounds",
        SCALED=index.scales is not None,
        HAS_NEWEST=newest is not None,
        PAGE_SIZE=index.page_size,
        **launch_options(
            q, heads, rope, (block_size_q, query_stride), (tile.num_warps, tile.num_stages), early
        ),
    )
    return out


def score_pages(
    q: torch.Tensor,
    index: PageIndex,
    window_starts: torch.Tensor,
    rope: RopeTables,
    distance: int,
    block_size_q: int,
    query_stride: int,
    sink_tokens: int,
) -> torch.Tensor:
    """See `hipcli.kernels.score_pages.score_pages`."""
    require_launchable(q, index.summaries)
    require_supported(q.shape[2], q.shape[1], index.summaries.shape[0])
    rows = padded_rows(q, index.summaries.shape[0], block_size_q, query_stride)
    if rows > MAX_ROWS:
        raise NotImplementedError(
            f"query_stride {query_stride}: {rows} averaged queries a block are more than the"
            f" {MAX_ROWS} of a tile; use a longer query_stride"
        )
    sizes = (block_size_q, query_stride, sink_tokens)
    return launch(q, index, window_starts, rope, distance, sizes)
