"""Page scores on a CPU: matrix products over the pages that can be chosen, tile by tile.

For every channel the larger of q * max and q * min bounds q * k, so with q split into its negative
and positive parts the bound of a page is [q-, q+] . [min, max].
"""

from __future__ import annotations

import torch

from ..cpu_common import pooled_rows
from ..types import PageIndex, RopeTables

# Scores of so many pairs of a query and a page are made and looked through at once: near enough
# to the second-level cache, and large enough to be worth a product.
TILE_SCORES = 1 << 19


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
    tile_pages = max(TILE_SCORES // rows.shape[1], 1)
    buffer = rows.new_empty(rows.shape[1], min(tile_pages, last - first))
    for start in range(first, last, tile_pages):
        end = min(start + tile_pages, last)
        scores = buffer[:, : end - start]
        for head in range(num_kv_heads):
            # Head by head: a batched product over strided summaries would copy them first.
            torch.mm(rows[head], _summaries(index, head, start, end, rows.dtype).t(), out=scores)
            out[:, head, start:end] = scores.unflatten(0, (blocks, per_block)).amax(1)
    # Windows start a little apart: only the last pages are beyond some of them.
    common = min(int(ends.min()), last)
    beyond = torch.arange(common, last) >= ends[:, None]
    out[:, :, common:last].masked_fill_(beyond[:, None], -torch.inf)
    return out


def _summaries(
    index: PageIndex, head: int, start: int, end: int, dtype: torch.dtype
) -> torch.Tensor:
    """Summaries of one KV head's pages [start, end) as rows, in the dtype of the queries."""
    summaries = index.summaries[head, start:end].flatten(1)
    if index.scales is not None:
        summaries = summaries.float() * index.scales[head, start:end, None]
    return summaries.to(dtype)
