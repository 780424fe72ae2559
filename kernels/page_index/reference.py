"""The page index in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import gather_tokens
from ..types import PageIndex

FP8_MAX = 448.0


def _summary(keys: torch.Tensor, kind: str) -> torch.Tensor:
    """fp32 [num_kv_heads, S, head_dim] of keys [num_kv_heads, n, head_dim]."""
    keys = keys.float()
    if kind == "bounds":
        return torch.stack((keys.amin(1), keys.amax(1)), dim=1)
    return keys.mean(1, keepdim=True)


def update_page_index_(
    index: PageIndex,
    k_pages: torch.Tensor,
    page_table: torch.Tensor,
    seqlen_k: torch.Tensor,
    num_new_tokens: int,
    k_scales: torch.Tensor | None = None,
) -> None:
    """See `hipcli.kernels.page_index.update_page_index_`."""
    total = int(seqlen_k)
    page_size = index.page_size
    first = max(total - num_new_tokens, 0) // page_size
    for page in range(first, min(-(-total // page_size), index.summaries.shape[1])):
        end = min(total, (page + 1) * page_size)
        tokens = torch.arange(page * page_size, end, device=k_pages.device)
        summary = _summary(gather_tokens(k_pages, page_table, tokens, k_scales), index.kind)
        if index.scales is not None:
            scale = summary.abs().amax((1, 2)) / FP8_MAX
            index.scales[:, page] = torch.where(scale > 0, scale, 1.0)
            summary = summary / index.scales[:, page, None, None]
        index.summaries[:, page] = summary.to(index.summaries.dtype)
