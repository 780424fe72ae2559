"""Exact block scores in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import gather_pages, one_head
from ..score_pages.reference import pooled_rows
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
    num_kv_heads = kv.k_pages.shape[1]
    out = []
    for block, queries in enumerate(q.split(block_size_q)):
        rows = pooled_rows(queries, rope, distance, num_kv_heads, query_stride)
        for head in range(num_kv_heads):
            pages = candidate_pages[block, head].long()
            part = one_head(kv, head)
            listed = pages >= 0
            keys = gather_pages(part.k_pages, part.page_table, pages[listed], part.k_scales)
            logits = rows[head] @ keys.float().flatten(0, 2).transpose(0, 1)
            per_page = kv.k_pages.shape[2] // block_size_k
            scores = torch.full((len(pages), per_page), -torch.inf, device=q.device)
            scores[listed] = logits.amax(0).unflatten(0, (-1, per_page, block_size_k)).amax(2)
            out.append(scores.flatten())
    return torch.stack(out).unflatten(0, (-1, num_kv_heads))
