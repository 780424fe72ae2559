"""Writing keys and values into pages of 8-bit codes, one scale a page, KV head and kind."""

from __future__ import annotations

import torch

from ..backends import implementation, resolve
from ..checks import (
    CODE_DTYPES,
    FLOAT_DTYPES,
    check_page_table,
    check_seqlen,
    check_values,
    require_dtype,
    require_positive,
    require_power_of_two,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import PagedKV


def quantise_pages_(
    kv: PagedKV,
    k: torch.Tensor,
    v: torch.Tensor,
    seqlen_k: torch.Tensor,
    *,
    backend: str = "auto",
) -> None:
    """Write the newest tokens into their pages in place, quantised to float8_e4m3fn or int8.

    A scale is the smallest power of two with which the page's largest value fits. A page that
    already holds tokens keeps its scale, or takes a larger one and its older values are halved as
    often as that demands: a page and its scale are all there is to know, and nothing else is kept.

    In e4m3 a stored value has the same four significant bits whatever the scale is, and a page
    does not depend on how many calls wrote it, but for values below scale * 2^-6 (at most 2^-13
    of the page's largest), whose last bits lie on a grid of scale * 2^-9.

    In int8 a stored value is a step of a grid, code = floor(value / scale), and stands for the
    step's middle, (code + 1/2) * scale: off by at most half a step, like a rounded one. Rounded
    codes that are halved and rounded again would not be those of a larger scale from the start;
    steps are, since two neighbours are one of the coarser grid. So a page does not depend on how
    many calls wrote it in a single bit. What stands for 0 is half a step.

    Args:
        kv: pages float8_e4m3fn or int8, with scales.
        k: [T, num_kv_heads, head_dim], un-rotated.
        v: the same shape and dtype.
        seqlen_k: int32 [1], tokens in the cache, the T new ones included. Tokens before them
            in the first page keep their values; in a page of which the first new token is
            the first one, nothing older counts.
        backend: a name of BACKENDS, or "auto".

    Raises:
        ValueError, TypeError: a shape, dtype or device does not fit.
    """
    heads, page_size, head_dim = kv.k_pages.shape[1:]
    require_dtype("k_pages", kv.k_pages, CODE_DTYPES)
    require_unit_stride("k_pages", kv.k_pages)
    require_power_of_two("page_size (k_pages.shape[2])", page_size)
    check_values(kv, backend)
    check_page_table(kv.page_table, heads, resolve(backend, k.device))
    require_shape("k", k, (None, heads, head_dim))
    require_dtype("k", k, FLOAT_DTYPES)
    require_unit_stride("k", k)
    require_positive(**{"k's number of tokens": k.shape[0]})
    require_shape("v", v, k.shape)
    require_dtype("v", v, (k.dtype,))
    require_unit_stride("v", v)
    check_seqlen(seqlen_k)
    require_same_device(k_pages=kv.k_pages, page_table=kv.page_table, k=k, v=v, seqlen_k=seqlen_k)
    run = implementation("quantise_pages", backend, k.device, "quantise_pages_")
    run(kv, k, v, seqlen_k)


def append_to_page_(
    page: torch.Tensor, scales: torch.Tensor, rows: torch.Tensor, first: int
) -> None:
    """`quantise_pages_` for tokens that lie in one page, keys and values at once; on a CPU.

    Args:
        page: [2, num_kv_heads, page_size, head_dim], or without the first dimension.
        scales: fp32 [2, num_kv_heads], or without the first dimension.
        rows: [n, 2, num_kv_heads, head_dim] in the same way.
        first: place in the page of the first of them; with 0 nothing older counts.
    """
    from .cpu_impl import append_to_page_ as run

    run(page, scales, rows, first)
