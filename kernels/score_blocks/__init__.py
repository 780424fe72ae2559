"""Exact scores of the small blocks inside candidate pages."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import (
    check_distance,
    check_pages,
    check_queries,
    check_rope,
    num_q_blocks,
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import PagedKV, RopeTables


def score_blocks(
    q: torch.Tensor,
    kv: PagedKV,
    candidate_pages: torch.Tensor,
    rope: RopeTables,
    distance: int,
    block_size_q: int,
    block_size_k: int,
    query_stride: int,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """Score every block of block_size_k keys in the candidate pages of each query block.

    A block's score is the maximum of q . k over its keys, the block's averaged queries and
    the heads of the group; queries are averaged and placed as in `score_pages`.

    Args:
        q: [N, num_heads, head_dim], un-rotated.
        kv: pages of keys; values are not read.
        candidate_pages: int32 [num_q_blocks, num_kv_heads, c] logical pages, all of them full;
            -1 for an unused tail.
        rope: tables with more than `distance` rows.
        distance: position of the queries while the keys stand at 0.
        block_size_q: queries a block, tokens.
        block_size_k: keys a block, tokens; divides the page size.
        query_stride: neighbouring queries averaged into one; 1 keeps all.
        backend: a name of BACKENDS, or "auto".

    Returns:
        fp32 [num_q_blocks, num_kv_heads, c * page_size / block_size_k]; -inf for unused pages.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    check_pages(kv, q, backend)
    heads, page_size = kv.k_pages.shape[1:3]
    check_queries(q, heads)
    check_rope(rope, q.shape[2])
    check_distance(distance, rope)
    require_positive(
        block_size_q=block_size_q, block_size_k=block_size_k, query_stride=query_stride
    )
    if page_size % block_size_k:
        raise ValueError(
            f"block_size_k: expected a divisor of the page size {page_size}, "
            f"received {block_size_k}"
        )
    blocks = num_q_blocks(q.shape[0], block_size_q)
    require_shape("candidate_pages", candidate_pages, (blocks, heads, None))
    require_dtype("candidate_pages", candidate_pages, (torch.int32,))
    require_unit_stride("candidate_pages", candidate_pages)
    require_same_device(
        q=q,
        k_pages=kv.k_pages,
        page_table=kv.page_table,
        candidate_pages=candidate_pages,
        cos=rope.cos,
    )
    run = implementation("score_blocks", backend, q.device)
    return run(q, kv, candidate_pages, rope, distance, block_size_q, block_size_k, query_stride)
