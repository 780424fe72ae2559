"""Reading paged keys and values with plain PyTorch, for references and tests."""

from __future__ import annotations

import torch

from .types import PagedKV


def gather_tokens(
    pages: torch.Tensor,
    page_table: torch.Tensor,
    tokens: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of the given logical tokens.

    Args:
        pages: [P, num_kv_heads, page_size, head_dim].
        page_table: int32 [num_pages].
        tokens: int64 [n], logical token positions.
        scales: fp32 [P, num_kv_heads] for float8_e4m3fn pages, else None.

    Returns:
        [num_kv_heads, n, head_dim] in the pages' dtype, fp32 where they have scales.
    """
    page_size = pages.shape[2]
    slots = page_table.long()[tokens // page_size]
    rows = pages[slots, :, tokens % page_size].transpose(0, 1)
    return rows if scales is None else rows.float() * scales[slots].T[:, :, None]


def gather_pages(
    pages: torch.Tensor,
    page_table: torch.Tensor,
    logical_pages: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Whole logical pages: [n, num_kv_heads, page_size, head_dim] for int64 [n]; scales and
    dtype as in `gather_tokens`."""
    slots = page_table.long()[logical_pages]
    return pages[slots] if scales is None else dequantise(pages[slots], scales[slots])


def dequantise(
    pages: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Pages [..., page_size, head_dim] times their scales [...], in `dtype`."""
    return pages.to(dtype) * scales.to(dtype)[..., None, None]


def one_head(kv: PagedKV, head: int) -> PagedKV:
    """Keys and values of one KV head alone."""
    mine = slice(head, head + 1)
    return PagedKV(
        kv.k_pages[:, mine],
        kv.v_pages[:, mine],
        kv.page_table,
        None if kv.k_scales is None else kv.k_scales[:, mine],
        None if kv.v_scales is None else kv.v_scales[:, mine],
    )
