"""Page scores in plain PyTorch; `pooled_rows` serves `score_blocks` too."""

from __future__ import annotations

import torch

from ..rope.reference import rotate
from ..types import PageIndex, RopeTables


def pooled_rows(
    q: torch.Tensor, rope: RopeTables, distance: int, num_kv_heads: int, query_stride: int
) -> torch.Tensor:
    """Average runs of query_stride queries and rotate them to `distance`.

    Args:
        q: [n, num_heads, head_dim], the queries of one block.

    Returns:
        fp32 [num_kv_heads, rows, head_dim], rows = ceil(n / query_stride) * group.
    """
    runs = q.float().split(query_stride)
    pooled = torch.stack([run.mean(0) for run in runs])
    rotated = rotate(pooled, rope.cos[distance], rope.sin[distance])
    groups = rotated.unflatten(1, (num_kv_heads, -1))
    return groups.transpose(0, 1).flatten(1, 2)


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
    summaries = index.summaries.float()
    if index.scales is not None:
        summaries = summaries * index.scales[:, :, None, None]
    pages = torch.arange(summaries.shape[1], device=q.device)
    out = []
    for block, queries in enumerate(q.split(block_size_q)):
        rows = pooled_rows(queries, rope, distance, summaries.shape[0], query_stride)
        if index.kind == "bounds":
            low = rows.clamp(max=0) @ summaries[:, :, 0].transpose(1, 2)
            scores = low + rows.clamp(min=0) @ summaries[:, :, 1].transpose(1, 2)
        else:
            scores = rows @ summaries[:, :, 0].transpose(1, 2)
        end = int(window_starts[block]) // index.page_size
        outside = (pages < sink_tokens // index.page_size) | (pages >= end)
        out.append(scores.amax(1).masked_fill(outside, -torch.inf))
    return torch.stack(out)
