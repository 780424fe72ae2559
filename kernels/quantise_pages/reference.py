"""Quantising pages in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import one_head, slots_of
from ..types import PagedKV
from .codes import coded, least_scale


def _write_page(page: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, first: int) -> None:
    """Tokens first.. of one page [num_kv_heads, page_size, head_dim] become rows [n, ...]."""
    rows = rows.float().transpose(0, 1)
    scale = least_scale(rows.abs().amax((1, 2)), page.dtype)
    if first > 0:
        scale = torch.maximum(scale, scales)
        older = page[:, :first].float() * (scales / scale)[:, None, None]
        page[:, :first] = coded(older, page.dtype)
    page[:, first : first + rows.shape[1]] = coded(rows / scale[:, None, None], page.dtype)
    scales.copy_(scale)


def quantise_pages_(kv: PagedKV, k: torch.Tensor, v: torch.Tensor, seqlen_k: torch.Tensor) -> None:
    """See `hipcli.kernels.quantise_pages.quantise_pages_`."""
    assert kv.k_scales is not None and kv.v_scales is not None
    page_size = kv.k_pages.shape[2]
    total = int(seqlen_k)
    start = total - len(k)
    while start < total:
        page, first = divmod(start, page_size)
        end = min(total, (page + 1) * page_size)
        new = slice(start - total + len(k), end - total + len(k))
        logical = torch.tensor([page], device=k.device)
        for head in range(kv.k_pages.shape[1]):
            part, mine = one_head(kv, head), slice(head, head + 1)
            slot = int(slots_of(part.page_table, logical))
            _write_page(part.k_pages[slot], part.k_scales[slot], k[new, mine], first)
            _write_page(part.v_pages[slot], part.v_scales[slot], v[new, mine], first)
        start = end
