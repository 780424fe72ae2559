"""Exact scores of every key for a handful of query rows, as block maxima, in one pass over K."""

import torch

# Pages per tile: 128 pages x 64 keys x ~200 rows of scores stay in the second-level cache.
TILE_PAGES = 128


def block_maxima(
    q: torch.Tensor, pages: torch.Tensor, start_page: int, end_page: int, block_size_k: int
) -> torch.Tensor:
    """Maximum score of each block of keys.

    Args:
        q: [num_kv_heads, rows, head_dim], scaled, rotated to one fixed distance.
        pages: [num_pages, 2, num_kv_heads, page_size, head_dim], keys un-rotated.
        start_page, end_page: the pages to score, all of them full.
        block_size_k: tokens of a block; divides page_size.

    Returns:
        fp32 [num_kv_heads, num_blocks, rows], blocks of the pages in order.
    """
    _, _, num_kv_heads, page_size, head_dim = pages.shape
    rows = q.shape[1]
    per_page = page_size // block_size_k
    out = torch.empty(
        num_kv_heads, (end_page - start_page) * per_page, rows, dtype=torch.float32, device=q.device
    )
    for head in range(num_kv_heads):
        q_columns = q[head].t().contiguous()
        for first in range(start_page, end_page, TILE_PAGES):
            last = min(first + TILE_PAGES, end_page)
            keys = pages[first:last, 0, head].reshape(-1, head_dim)
            scores = torch.mm(keys, q_columns).view(-1, block_size_k, rows)
            at = (first - start_page) * per_page
            out[head, at : at + scores.shape[0]] = scores.amax(1)
    return out
