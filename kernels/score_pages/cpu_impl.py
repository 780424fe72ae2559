"""Page scores on a CPU: one batched matrix product over the pages that can be chosen.

For every channel the larger of q * max and q * min bounds q * k, so with q split into its negative
and positive parts the bound of a page is [q-, q+] . [min, max].
"""

from __future__ import annotations

import torch

from ..cpu_common import pooled_rows
from ..types import PageIndex, RopeTables


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
    num_kv_heads, num_pages = index.summaries.shape[:2]
    blocks = len(window_starts)
    out = torch.full((blocks, num_kv_heads, num_pages), -torch.inf)
    ends = window_starts.long() // index.page_size
    first, last = sink_tokens // index.page_size, min(int(ends.max()), num_pages)
    if last <= first:
        return out
    rows = pooled_rows(q, rope, distance, num_kv_heads, block_size_q, query_stride)
    per_block = rows.shape[2]
    rows = rows.flatten(1, 2)
    if index.kind == "bounds":
        rows = torch.cat((rows.clamp(max=0), rows.clamp(min=0)), dim=-1)
    summaries = index.summaries[:, first:last].flatten(2)
    if index.scales is not None:
        summaries = summaries.float() * index.scales[:, first:last, None]
    scores = torch.bmm(rows, summaries.to(rows.dtype).transpose(1, 2))
    best = scores.unflatten(1, (blocks, per_block)).amax(2).float().transpose(0, 1)
    beyond = torch.arange(first, last) >= ends[:, None]
    out[:, :, first:last] = best.masked_fill(beyond[:, None], -torch.inf)
    return out
