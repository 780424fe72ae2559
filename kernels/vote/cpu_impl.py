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
    buffer = columns.new_empty(min(TILE_PAGES, full) * page_size, rows.shape[1])
    for first in range(0, full, TILE_PAGES):
        last = min(first + TILE_PAGES, full)
        tile = logical_pages(kv.k_pages, kv.page_table, first, last)
        for head in range(num_kv_heads):
            # Codes of 8 bits become numbers here; their scales wait for the page's best score.
            keys = tile[:, head].to(q.dtype).reshape(-1, head_dim)
            scores = buffer[: (last - first) * page_size]
            torch.mm(keys, columns[head], out=scores)
            best[head, first:last] = _page_maxima(scores.unflatten(0, (-1, page_size)))
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


def _page_maxima(scores: torch.Tensor) -> torch.Tensor:
    """Largest score of each page, [n, page_size, rows] -> [n, rows]; the scores are lost.

    Half of a page against the other half, and so on: `amax` takes several times as long where the
    rows are no multiple of 128.
    """
    size = scores.shape[1]
    while size % 2 == 0:
        size //= 2
        torch.maximum(scores[:, :size], scores[:, size : 2 * size], out=scores[:, :size])
    return scores[:, :size].amax(1)
