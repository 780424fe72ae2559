"""Quantising pages in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import one_head, slots_of
from ..types import PagedKV

# e4m3: four bits of exponent, three of mantissa; 448 is 1.75 * 2^8.
MAX_MANTISSA = 1.75
MAX_EXPONENT = 8
# The reciprocal of a much smaller scale would not be a number of fp32.
MIN_EXPONENT = -100


def least_scale(largest: torch.Tensor) -> torch.Tensor:
    """The smallest power of two, fp32, that brings values up to `largest` into e4m3's range."""
    # mantissa in [0.5, 1): frexp counts exponents one higher than e4m3's definition does.
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - 1 - MAX_EXPONENT + (2 * mantissa > MAX_MANTISSA).int()
    exponent = torch.where(largest > 0, exponent, MIN_EXPONENT).clamp(min=MIN_EXPONENT)
    # By its bits: a power function may be off by the last one.
    return ((exponent.int() + 127) << 23).view(torch.float32)


def _write_page(page: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, first: int) -> None:
    """Tokens first.. of one page [num_kv_heads, page_size, head_dim] become rows [n, ...]."""
    rows = rows.float().transpose(0, 1)
    scale = least_scale(rows.abs().amax((1, 2)))
    if first > 0:
        scale = torch.maximum(scale, scales)
        older = page[:, :first].float() * (scales / scale)[:, None, None]
        page[:, :first] = older.to(page.dtype)
    page[:, first : first + rows.shape[1]] = (rows / scale[:, None, None]).to(page.dtype)
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
