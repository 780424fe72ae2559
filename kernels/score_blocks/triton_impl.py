"""Exact block scores: keys of some candidate pages times the pooled rows of a query block.

Keys are the rows of the product, so the maximum over queries stays inside a thread and its
neighbours, and every K tile serves all heads of its group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..score_pages.triton_impl import pooled_columns
from ..triton_common import dot_precision, pad_channels, require_launchable, require_supported
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
    page_table,
    candidates,
    cos_row,
    sin_row,
    out,
    num_tokens,
    num_candidates,
    pages_per_program,
    q_strides: tl.constexpr,
    k_strides: tl.constexpr,
    candidate_strides: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    ROTARY: tl.constexpr,
    BLOCK_SIZE_Q: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(1)
    block = tl.program_id(2)
    slot_of_row = tl.arange(0, ROWS)
    rows = pooled_columns(
        q, q_strides, block + tl.zeros_like(slot_of_row), slot_of_row, head, num_tokens,
        cos_row, sin_row, GROUP, HEAD_DIM, D_PAD, ROTARY, BLOCK_SIZE_Q, QUERY_STRIDE,
    )  # fmt: skip
    columns = tl.trans(rows.to(k_pages.dtype.element_ty))
    PER_PAGE: tl.constexpr = PAGE_SIZE // BLOCK_K
    BLOCKS: tl.constexpr = BLOCK_T // BLOCK_K
    listed = candidates + block.to(tl.int64) * candidate_strides[0] + head * candidate_strides[1]
    target = (block.to(tl.int64) * tl.num_programs(1) + head) * num_candidates * PER_PAGE + out
    start = tl.program_id(0) * pages_per_program
    end = tl.minimum(start + pages_per_program, num_candidates)
    token = tl.arange(0, BLOCK_T)
    small = tl.arange(0, BLOCKS)
    channel = tl.arange(0, D_PAD)
    keys_of_head = k_pages + head * k_strides[1]
    number = (start * PAGE_SIZE + token) // PAGE_SIZE
    page = tl.load(listed + number, mask=number < end, other=-1)
    slot = tl.load(page_table + page, mask=page >= 0, other=0)
    for tile in range(start * PAGE_SIZE, end * PAGE_SIZE, BLOCK_T):
        at = keys_of_head + slot.to(tl.int64) * k_strides[0]
        at += ((tile + token) % PAGE_SIZE) * k_strides[2]
        if D_PAD != HEAD_DIM:
            keys = tl.load(
                at[:, None] + channel[None, :], mask=(channel < HEAD_DIM)[None, :], other=0.0
            )
        else:
            keys = tl.load(at[:, None] + channel[None, :])
        best = tl.max(tl.dot(keys, columns, input_precision=PRECISION), axis=1)
        best = tl.where(page < 0, float("-inf"), best)
        # Fetched a step early, so that the compiler can prefetch the keys themselves.
        number = (tile + BLOCK_T + token) // PAGE_SIZE
        page = tl.load(listed + number, mask=number < end, other=-1)
        slot = tl.load(page_table + page, mask=page >= 0, other=0)
        best = tl.max(tl.reshape(best, [BLOCKS, BLOCK_K]), axis=1)
        at_block = tile // BLOCK_K + small
        tl.store(target + at_block, best, mask=at_block < end * PER_PAGE)


def default_tile(rows: int, num_blocks: int, num_candidates: int) -> Tile:
    """One page a program in decode; in prefill a quarter of the list."""
    if num_blocks * rows <= 64:
        return Tile(64, 1, num_warps=4, num_stages=2)
    return Tile(128, max(2, triton.cdiv(num_candidates, 4)), num_warps=4, num_stages=3)


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    candidate_pages: torch.Tensor,
    rope: RopeTables,
    distance: int,
    sizes: tuple[int, int, int],
    tile: Tile | None = None,
) -> torch.Tensor:
    """Score with sizes (block_size_q, block_size_k, query_stride) and a given tile."""
    block_size_q, block_size_k, query_stride = sizes
    num_tokens, num_heads, head_dim = q.shape
    heads, page_size = kv.k_pages.shape[1:3]
    group = num_heads // heads
    num_blocks, _, num_candidates = candidate_pages.shape
    rows = pad_channels(triton.cdiv(block_size_q, query_stride) * group)
    tile = tile or default_tile(rows, num_blocks, num_candidates)
    per_page = page_size // block_size_k
    out = torch.empty(
        (num_blocks, heads, num_candidates * per_page), dtype=torch.float32, device=q.device
    )
    grid = (triton.cdiv(num_candidates, tile.pages_per_program), heads, num_blocks)
    _score_blocks[grid](
        q,
        kv.k_pages,
        kv.page_table,
        candidate_pages,
        rope.cos[distance],
        rope.sin[distance],
        out,
        num_tokens,
        num_candidates,
        tile.pages_per_program,
        q_strides=q.stride(),
        k_strides=kv.k_pages.stride(),
        candidate_strides=candidate_pages.stride(),
        GROUP=group,
        HEAD_DIM=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        ROTARY=rope.cos.shape[1],
        BLOCK_SIZE_Q=block_size_q,
        QUERY_STRIDE=query_stride,
        ROWS=rows,
        BLOCK_T=tile.block_tokens,
        BLOCK_K=block_size_k,
        PAGE_SIZE=page_size,
        PRECISION=dot_precision(q.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


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
