"""Exact block scores on a CPU: candidate pages are gathered once for all rows that share them."""

from __future__ import annotations

import torch

from ..cpu_codes import decoded_blocks, page_scales
from ..cpu_common import gather_blocks, pooled_rows
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
) -> torch.Tensor:
    """See `hipcli.kernels.score_blocks.score_blocks`."""
    num_kv_heads, page_size = kv.k_pages.shape[1:3]
    rows = pooled_rows(q, rope, distance, num_kv_heads, block_size_q, query_stride)
    per_page = page_size // block_size_k
    num_blocks, _, num_candidates = candidate_pages.shape
    out = torch.empty(num_blocks, num_kv_heads, num_candidates * per_page)
    for first, last in _runs(candidate_pages):
        pages = candidate_pages[first].clamp(min=0)
        keys = gather_blocks(kv.k_pages, kv.page_table, pages, page_size)
        if kv.k_scales is not None:
            scales = page_scales(kv.k_scales, kv.page_table, pages)
            keys = decoded_blocks(keys, scales, q.dtype)
        queries = rows[:, first:last].flatten(1, 2)
        scores = torch.bmm(queries, keys.transpose(1, 2)).unflatten(1, (last - first, -1))
        best = scores.unflatten(3, (-1, block_size_k)).amax((2, 4))
        out[first:last] = best.transpose(0, 1)
    unused = (candidate_pages < 0).repeat_interleave(per_page, dim=-1)
    return out.masked_fill_(unused, -torch.inf)


def _runs(candidate_pages: torch.Tensor) -> list[tuple[int, int]]:
    """Ranges of neighbouring query blocks with the same candidates."""
    changed = (candidate_pages[1:] != candidate_pages[:-1]).flatten(1).any(1)
    borders = [0, *(changed.nonzero().flatten() + 1).tolist(), len(candidate_pages)]
    return list(zip(borders[:-1], borders[1:], strict=True))
