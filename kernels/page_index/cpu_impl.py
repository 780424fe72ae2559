"""The page index on a CPU: all full pages at once, the tail page by itself."""

from __future__ import annotations

import torch

from ..cpu_common import logical_pages
from ..paging import dequantise
from ..types import PageIndex

FP8_MAX = 448.0


def update_page_index_(
    index: PageIndex,
    k_pages: torch.Tensor,
    page_table: torch.Tensor,
    seqlen_k: torch.Tensor,
    num_new_tokens: int,
    k_scales: torch.Tensor | None = None,
) -> None:
    """See `hipcli.kernels.page_index.update_page_index_`."""
    total = min(int(seqlen_k), index.summaries.shape[1] * index.page_size)
    first = max(total - num_new_tokens, 0) // index.page_size
    full, rest = divmod(total, index.page_size)
    if full > first:
        keys = logical_pages(k_pages, page_table, first, full)
        _summarise(index, keys, _scales(k_scales, page_table, first, full), first)
    if rest:
        tail = logical_pages(k_pages, page_table, full, full + 1)[:, :, :rest]
        _summarise(index, tail, _scales(k_scales, page_table, full, full + 1), full)


def _scales(
    k_scales: torch.Tensor | None, page_table: torch.Tensor, first: int, last: int
) -> torch.Tensor | None:
    """Of logical pages [first, last): [n, num_kv_heads]."""
    return None if k_scales is None else logical_pages(k_scales, page_table, first, last)


def _summarise(
    index: PageIndex, keys: torch.Tensor, scales: torch.Tensor | None, first: int
) -> None:
    """Summaries of keys [n, num_kv_heads, tokens, head_dim] become pages first.. of the index."""
    keys = keys if scales is None else dequantise(keys, scales)
    if index.kind == "bounds":
        summary = torch.stack((keys.amin(2), keys.amax(2)), dim=2)
    else:
        summary = keys.float().mean(2, keepdim=True)
    summary = summary.transpose(0, 1)
    pages = slice(first, first + summary.shape[1])
    if index.scales is not None:
        summary = summary.float()
        scale = summary.abs().amax((2, 3)) / FP8_MAX
        index.scales[:, pages] = torch.where(scale > 0, scale, 1.0)
        summary = summary / index.scales[:, pages, None, None]
    index.summaries[:, pages] = summary.to(index.summaries.dtype)
