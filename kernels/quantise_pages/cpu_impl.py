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
    for pages, scales, rows in ((kv.k_pages, kv.k_scales, k), (kv.v_pages, kv.v_scales, v)):
        if few:
            slot = int(slots[0])
            append_to_page_(pages[slot], scales[slot], rows[:few], offset)
        if whole:
            place = slots[few > 0 :][: whole // page_size]
            _write_full(pages, scales, rows[few : few + whole], place)
        if few + whole < len(rows):
            slot = int(slots[-1])
            append_to_page_(pages[slot], scales[slot], rows[few + whole :], 0)


def append_to_page_(
    page: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, first: int
) -> None:
    """See `hipcli.kernels.quantise_pages.append_to_page_`."""
    if rows.dtype == torch.float16:
        # Which lacks the exponents of small scales.
        rows = rows.float()
    rows, end = rows.movedim(0, -2), first + rows.shape[0]
    if first > 0 and page.dtype == torch.int8:
        # What mostly happens: the page's scale fits the new tokens too.
        steps = rows / scales.to(rows.dtype)[..., None, None]
        least, largest = torch.aminmax(steps)
        if float(least) > -128 and float(largest) < 128:
            page[..., first:end, :] = steps.floor_()
            return
    scale = least_scale(rows.abs().amax((-2, -1)), page.dtype)
    if first > 0:
        scale = torch.maximum(scale, scales)
        older = page[..., :first, :].float() * (scales / scale)[..., None, None]
        page[..., :first, :] = coded(older, page.dtype)
    steps = rows / scale.to(rows.dtype)[..., None, None]
    page[..., first:end, :] = coded(steps, page.dtype)
    scales.copy_(scale)


def _write_full(
    pages: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor
) -> None:
    """Rows [n * page_size, num_kv_heads, head_dim] fill n pages."""
    rows = rows.unflatten(0, (len(slots), -1)).transpose(1, 2)
    # In fp32 and in one piece a CPU takes a third of the time that it takes in bf16.
    steps = torch.empty(rows.shape, dtype=torch.float32).copy_(rows)
    scale = least_scale(steps.abs().amax((2, 3)), pages.dtype)
    steps.div_(scale[..., None, None])
    first, last = int(slots[0]), int(slots[-1]) + 1
    if bool((slots.diff() == 1).all()):
        pages[first:last] = steps.floor_() if pages.dtype == torch.int8 else steps
        scales[first:last] = scale
        return
    # As bytes: an indexed write knows no float8.
    pages.view(torch.uint8)[slots] = coded(steps, pages.dtype).view(torch.uint8)
    scales[slots] = scale
