"""Reading paged keys and values with plain PyTorch, for references and tests."""

from __future__ import annotations

import torch

from .types import PagedKV


def slots_of(page_table: torch.Tensor, logical_pages: torch.Tensor) -> torch.Tensor:
    """Slots of logical pages.

    Args:
        page_table: int32 [num_pages] or [num_kv_heads, num_pages].
        logical_pages: int64 [n].

    Returns:
        int64 [n], or [num_kv_heads, n].

    Raises:
        ValueError: a KV head's own table has no slot for one of them.
    """
    slots = page_table[..., logical_pages].long()
    # A shared table has all pages, and to read its values would wait for the device.
    if page_table.dim() == 2 and bool((slots < 0).any()):
        page = int(logical_pages[int((slots < 0).any(0).nonzero()[0])])
        raise ValueError(f"page_table: page {page} is needed and a KV head has no slot for it")
    return slots


def gather_tokens(
    pages: torch.Tensor,
    page_table: torch.Tensor,
    tokens: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of the given logical tokens.

    Args:
        pages: [P, num_kv_heads, page_size, head_dim].
        page_table: int32 [num_pages] or [num_kv_heads, num_pages].
        tokens: int64 [n], logical token positions.
        scales: fp32 [P, num_kv_heads] of quantised pages, else None.

    Returns:
        [num_kv_heads, n, head_dim] in the pages' dtype, fp32 where they have scales.

    Raises:
        ValueError: see `slots_of`.
    """
    page_size = pages.shape[2]
    slots = slots_of(page_table, tokens // page_size)
    heads = torch.arange(pages.shape[1], device=pages.device)[:, None]
    rows = pages[slots, heads, tokens % page_size]
    if scales is None:
        return rows
    return decoded(rows, torch.float32) * scales[slots, heads][:, :, None]


def gather_pages(
    pages: torch.Tensor,
    page_table: torch.Tensor,
    logical_pages: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Whole logical pages: [n, num_kv_heads, page_size, head_dim] for int64 [n]; scales, dtype
    and errors as in `gather_tokens`."""
    slots = slots_of(page_table, logical_pages)
    heads = torch.arange(pages.shape[1], device=pages.device)[:, None]
    rows = pages[slots, heads].transpose(0, 1)
    return rows if scales is None else dequantise(rows, scales[slots, heads].T)


def dequantise(
    pages: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The values in `dtype` of pages [..., page_size, head_dim] with scales [...]."""
    return decoded(pages, dtype) * scales.to(dtype)[..., None, None]


def decoded(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What codes stand for in units of their scale, a copy: bf16 and wider hold it exactly.

    A code of int8 names a step of the grid, from itself to the next code, and stands for its
    middle; `quantise_pages_` says why.
    """
    values = codes.to(dtype, copy=True)
    return values.add_(0.5) if codes.dtype == torch.int8 else values


def one_head(kv: PagedKV, head: int) -> PagedKV:
    """Keys and values of one KV head alone, under a table of one dimension or its own."""
    mine = slice(head, head + 1)
    return PagedKV(
        kv.k_pages[:, mine],
        kv.v_pages[:, mine],
        kv.page_table if kv.page_table.dim() == 1 else kv.page_table[mine],
        None if kv.k_scales is None else kv.k_scales[:, mine],
        None if kv.v_scales is None else kv.v_scales[:, mine],
    )
