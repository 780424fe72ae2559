"""The vote on a CPU: one pass over K in tiles whose scores stay in cache."""

from __future__ import annotations

import torch

from ..cpu_common import fold_heads, logical_pages, rotate_, unfold_heads
from ..types import PagedKV, RopeTables

# 128 pages x 64 keys x about 200 rows of scores stay in the second-level cache.
TILE_PAGES = 128


def vote(
    q: torch.Tensor,
    kv: PagedKV,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    distance: int,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.vote.vote`."""
    num_kv_heads, page_size, head_dim = kv.k_pages.shape[1:]
    num_tokens, num_pages = q.shape[0], len(kv.page_table)
    total = min(int(seqlen_k), num_pages * page_size)
    full, rest = divmod(total, page_size)
    rows = fold_heads(q, num_kv_heads) * softmax_scale
    rotate_(rows, rope.cos[distance], rope.sin[distance])
    best = torch.full((num_kv_heads, num_pages, rows.shape[1]), -torch.inf)
    columns = rows.transpose(1, 2).contiguous()
    tokens = min(TILE_PAGES, full) * page_size
    keys, scores = columns.new_empty(tokens, head_dim), columns.new_empty(tokens, rows.shape[1])
    for first in range(0, full, TILE_PAGES):
        last = min(first + TILE_PAGES, full)
        tile = logical_pages(kv.k_pages, kv.page_table, first, last)
        count = (last - first) * page_size
        for head in range(num_kv_heads):
            # First keys of all pages, then second ones: so the largest of a page are found for all
            # pages at once. Codes of 8 bits become numbers here; their scales wait for the best.
            ordered = keys[:count].view(page_size, last - first, head_dim)
            ordered.copy_(tile[:, head].transpose(0, 1))
            torch.mm(keys[:count], columns[head], out=scores[:count])
            best[head, first:last] = _largest(scores[:count].view(page_size, last - first, -1))
    if rest:
        tail = logical_pages(kv.k_pages, kv.page_table, full, full + 1)[0, :, :rest]
        best[:, full] = torch.bmm(tail.to(q.dtype), columns).amax(1)
    if kv.k_scales is not None:
        _scale_(best, kv.k_pages.dtype, rows, kv.k_scales[kv.page_table.long()])
    page_max = unfold_heads(best.transpose(1, 2), num_tokens)
    return page_max, torch.logsumexp(page_max, dim=-1)


def _scale_(
    best: torch.Tensor, code_dtype: torch.dtype, rows: torch.Tensor, scales: torch.Tensor
) -> None:
    """Best products with codes become best products with keys, in place.

    Args:
        best: fp32 [num_kv_heads, num_pages, n], -inf where a page has no key.
        code_dtype: of the pages; int8 stands for the middle of a step, see `paging.decoded`.
        rows: the queries [num_kv_heads, n, head_dim].
        scales: fp32 [num_pages, num_kv_heads], all positive where a page has keys.
    """
    if code_dtype == torch.int8:
        best += rows.float().sum(-1).mul_(0.5).unsqueeze(1)
    # A page without keys may have any scale.
    known = best > -torch.inf
    best.mul_(scales.T.unsqueeze(2)).masked_fill_(~known, -torch.inf)


def _largest(scores: torch.Tensor) -> torch.Tensor:
    """Maxima of bf16 or fp32 [page_size, n, rows] over the first axis.

    Positive bf16 numbers have the order of their bits as integers, negative ones the opposite; of
    integers the extremes take a tenth of the time.
    """
    if scores.dtype != torch.bfloat16:
        return scores.amax(0)
    bits = scores.view(torch.int16)
    high, low = bits.amax(0), bits.amin(0)
    return torch.where(high >= 0, high, low).view(torch.bfloat16)
