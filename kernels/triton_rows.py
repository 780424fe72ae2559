"""Queries as rows of a product in the Triton kernels: rotated, and averaged in runs.

`score_pages` and `score_blocks` take the rows of a query block, all heads of a group with every
so-many-th query, at one distance from all keys; the vote takes rows of single queries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .triton_common import dot_precision, early_options, pad_channels
from .types import RopeTables


@triton.jit
def rotated_rows(
    q,
    q_strides: tl.constexpr,
    token,
    token_end,
    head,
    cos_row,
    sin_row,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    ROTARY: tl.constexpr,
    RUN: tl.constexpr,
):
    """fp32 [R, D_PAD]: mean of up to RUN queries from `token` [R] on, rotated to one position.

    `token_end` bounds every run; a rotation is linear, so it commutes with the mean.
    """
    HALF: tl.constexpr = ROTARY // 2
    channel = tl.arange(0, D_PAD)
    rotary = channel < ROTARY
    partner = tl.where(channel < HALF, channel + HALF, channel - HALF)
    partner = tl.where(rotary, partner, channel)
    cos = tl.load(cos_row + channel, mask=rotary, other=1.0).to(tl.float32)
    sin = tl.load(sin_row + channel, mask=rotary, other=0.0).to(tl.float32)
    sin = tl.where(channel < HALF, -sin, sin)
    base = q + head.to(tl.int64) * q_strides[1]
    total = tl.zeros([token.shape[0], D_PAD], dtype=tl.float32)
    for step in tl.static_range(RUN):
        rows = (base + (token + step).to(tl.int64) * q_strides[0])[:, None]
        mask = (token + step < token_end)[:, None] & (channel < HEAD_DIM)[None, :]
        own = tl.load(rows + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        other = tl.load(rows + partner[None, :], mask=mask, other=0.0).to(tl.float32)
        total += own * cos[None, :] + other * sin[None, :]
    count = tl.minimum(token_end - token, RUN).to(tl.float32)
    return total / count[:, None]


@triton.jit
def pooled_columns(
    q,
    q_strides: tl.constexpr,
    block,
    slot,
    head,
    num_tokens,
    table_rows,
    POOL: tl.constexpr,
):
    """fp32 [R, D_PAD] pooled, rotated rows; row r is number slot[r] of query block block[r].

    POOL = (group, head_dim, padded head_dim, rotary_dim, block_size_q, query_stride). A slot
    without a query repeats the block's first row: a maximum does not notice.
    """
    GROUP: tl.constexpr = POOL[0]
    BLOCK_SIZE_Q: tl.constexpr = POOL[4]
    QUERY_STRIDE: tl.constexpr = POOL[5]
    run = slot // GROUP
    first = block * BLOCK_SIZE_Q
    end = tl.minimum(first + BLOCK_SIZE_Q, num_tokens)
    real = first + run * QUERY_STRIDE < end
    run = tl.where(real, run, 0)
    # A block past the last one repeats token 0.
    first = tl.where(first < num_tokens, first, 0)
    token = first + run * QUERY_STRIDE
    token_end = tl.where(block * BLOCK_SIZE_Q < num_tokens, end, 1)
    query_head = head * GROUP + tl.where(real, slot % GROUP, 0)
    return rotated_rows(
        q, q_strides, token, token_end, query_head, table_rows[0], table_rows[1],
        POOL[1], POOL[2], POOL[3], QUERY_STRIDE,
    )  # fmt: skip


def padded_rows(q: torch.Tensor, heads: int, block_size_q: int, query_stride: int) -> int:
    """ROWS of a query block: its averaged queries times the heads of a group."""
    return pad_channels(triton.cdiv(block_size_q, query_stride) * (q.shape[1] // heads))


def launch_options(
    q: torch.Tensor,
    heads: int,
    rope: RopeTables,
    queries: tuple[int, int],
    warps_and_stages: tuple[int, int],
    early: bool,
) -> dict[str, object]:
    """What kernels that begin with `pooled_columns` take by name.

    `queries` are block_size_q and query_stride; `early` as in `triton_common.begin`.
    """
    group, head_dim = q.shape[1] // heads, q.shape[2]
    pool = (group, head_dim, triton.next_power_of_2(head_dim), rope.cos.shape[1], *queries)
    return {
        "q_strides": q.stride(),
        "POOL": pool,
        "ROWS": padded_rows(q, heads, *queries),
        "PRECISION": dot_precision(q.dtype),
        "EARLY": early,
        "num_warps": warps_and_stages[0],
        "num_stages": warps_and_stages[1],
        **early_options(early),
    }
