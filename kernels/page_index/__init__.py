"""The page index: one small summary of the un-rotated keys of every page and KV head."""

from __future__ import annotations

import torch

from ..backends import implementation, resolve
from ..checks import (
    CODE_DTYPES,
    FLOAT_DTYPES,
    SUMMARIES_PER_PAGE,
    check_index,
    check_page_table,
    check_scales,
    check_seqlen,
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import PageIndex


def new_page_index(
    kind: str,
    shape: tuple[int, int, int],
    page_size: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> PageIndex:
    """An index with room for a number of pages, filled with zeros.

    Args:
        kind: "bounds" or "mean".
        shape: (num_kv_heads, num_pages, head_dim).
        page_size: tokens.
        dtype: bf16, fp16, fp32, or float8_e4m3fn with one fp32 scale a page and head.
        device: where the scoring runs.

    Returns:
        A PageIndex; fill it with `update_page_index_`.

    Raises:
        ValueError, TypeError: kind, sizes or dtype are not among these.
    """
    if kind not in SUMMARIES_PER_PAGE:
        allowed = ", ".join(SUMMARIES_PER_PAGE)
        raise ValueError(f"kind: expected one of {allowed}, received {kind!r}")
    num_kv_heads, num_pages, head_dim = shape
    require_positive(num_kv_heads=num_kv_heads, num_pages=num_pages, head_dim=head_dim)
    per_page = SUMMARIES_PER_PAGE[kind]
    summaries = torch.zeros(num_kv_heads, num_pages, per_page, head_dim, dtype=dtype, device=device)
    quantised = dtype == torch.float8_e4m3fn
    scales = torch.ones(num_kv_heads, num_pages, device=device) if quantised else None
    index = PageIndex(kind, summaries, scales, page_size)
    check_index(index, "reference")
    return index


def update_page_index_(
    index: PageIndex,
    k_pages: torch.Tensor,
    page_table: torch.Tensor,
    seqlen_k: torch.Tensor,
    num_new_tokens: int,
    *,
    k_scales: torch.Tensor | None = None,
    backend: str = "auto",
) -> None:
    """Summarise again, in place, every page that holds one of the newest tokens.

    Args:
        index: summaries of at least as many pages as the sequence has.
        k_pages: [P, num_kv_heads, page_size, head_dim], keys un-rotated; float8_e4m3fn or
            int8 with k_scales.
        page_table: int32 [num_pages] or [num_kv_heads, num_pages], see `PagedKV`.
        seqlen_k: int32 [1], tokens in the cache, the new ones included. A tail page is
            summarised over its tokens alone.
        num_new_tokens: how many of the last tokens are new; the whole sequence builds it.
        k_scales: fp32 [P, num_kv_heads] of such codes, else None.
        backend: a name of BACKENDS, or "auto".

    Raises:
        ValueError: a shape or value does not fit.
        TypeError: a dtype or device does not fit.
    """
    check_index(index, resolve(backend, k_pages.device))
    heads, pages, _, head_dim = index.summaries.shape
    require_shape("k_pages", k_pages, (None, heads, index.page_size, head_dim))
    require_dtype("k_pages", k_pages, (*FLOAT_DTYPES, *CODE_DTYPES))
    require_unit_stride("k_pages", k_pages)
    check_scales("k_scales", k_scales, k_pages, backend)
    check_page_table(page_table, heads, resolve(backend, k_pages.device))
    check_seqlen(seqlen_k)
    require_positive(num_new_tokens=num_new_tokens)
    require_same_device(
        summaries=index.summaries, k_pages=k_pages, page_table=page_table, seqlen_k=seqlen_k
    )
    run = implementation("page_index", backend, k_pages.device, "update_page_index_")
    run(index, k_pages, page_table, seqlen_k, num_new_tokens, k_scales)
