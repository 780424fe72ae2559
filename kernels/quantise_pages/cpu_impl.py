"""Quantising pages on a CPU: all heads at once, the full pages of a call together."""

from __future__ import annotations

import torch

from ..types import PagedKV
from .codes import coded, least_scale


def quantise_pages_(kv: PagedKV, k: torch.Tensor, v: torch.Tensor, seqlen_k: torch.Tensor) -> None:
    """See `hipcli.kernels.quantise_pages.quantise_pages_`."""
    assert kv.k_scales is not None and kv.v_scales is not None
    end, page_size = int(seqlen_k), kv.k_pages.shape[2]
    start = end - len(k)
    first, offset = divmod(start, page_size)
    few = min(page_size - offset, len(k)) if offset or len(k) < page_size else 0
    whole = (len(k) - few) // page_size * page_size
    slots = kv.page_table[first : -(-end // page_size)].long()
    if k.dtype == torch.float16:
        # Which lacks the exponents of small scales.
        k, v = k.float(), v.float()
    for pages, scales, rows in ((kv.k_pages, kv.k_scales, k), (kv.v_pages, kv.v_scales, v)):
        if few:
            slot = int(slots[0])
            _write(pages[slot], scales[slot], rows[:few], offset)
        if whole:
            place = slots[few > 0 :][: whole // page_size]
            _write_full(pages, scales, rows[few : few + whole], place)
        if few + whole < len(rows):
            slot = int(slots[-1])
            _write(pages[slot], scales[slot], rows[few + whole :], 0)


def _write(page: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, first: int) -> None:
    """Tokens first.. of one page [num_kv_heads, page_size, head_dim] become rows [n, ...]."""
    rows = rows.transpose(0, 1)
    if first > 0 and page.dtype == torch.int8:
        # What mostly happens: the page's scale fits the new tokens too.
        steps = rows / scales.to(rows.dtype)[:, None, None]
        least, largest = torch.aminmax(steps)
        if float(least) > -128 and float(largest) < 128:
            page[:, first : first + rows.shape[1]] = steps.floor_()
            return
    scale = least_scale(rows.abs().amax((1, 2)), page.dtype)
    if first > 0:
        scale = torch.maximum(scale, scales)
        older = page[:, :first].float() * (scales / scale)[:, None, None]
        page[:, :first] = coded(older, page.dtype)
    steps = rows / scale.to(rows.dtype)[:, None, None]
    page[:, first : first + rows.shape[1]] = coded(steps, page.dtype)
    scales.copy_(scale)


def _write_full(
    pages: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor
) -> None:
    """Rows [n * page_size, num_kv_heads, head_dim] fill n pages."""
    rows = rows.unflatten(0, (len(slots), -1)).transpose(1, 2)
    scale = least_scale(rows.abs().amax((2, 3)), pages.dtype)
    steps = rows / scale.to(rows.dtype)[..., None, None]
    # As bytes: an indexed write knows no float8.
    pages.view(torch.uint8)[slots] = coded(steps, pages.dtype).view(torch.uint8)
    scales[slots] = scale
