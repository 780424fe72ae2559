"""Pages from main memory into the slots of a device, for one page and KV head at a time."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import (
    FLOAT_DTYPES,
    check_values,
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import QUARTERS, HostPages, PagedKV

# What a thread moves at once.
VECTOR_BYTES = 16


def fetch_pages_(
    kv: PagedKV,
    host: HostPages,
    pages: torch.Tensor,
    slots: torch.Tensor,
    *,
    keys_only: bool = False,
    backend: str = "auto",
) -> None:
    """Copy pages of single KV heads, with their scales, from main memory into slots, in place.

    The page table is neither read nor written. Nothing waits for the device and every shape is
    fixed, so a CUDA graph can hold it; where there is nothing to do it costs its launch.

    Args:
        kv: what the slots hold. Keys, values and scales of a slot lie in one record of
            `kv.k_pages.stride(0)` elements, as `HostPages` says.
        host: where the pages lie in main memory.
        pages: int32 [num_kv_heads, n] logical pages; -1 for nothing to do.
        slots: int32 [num_kv_heads, n], where to; -1 for nothing to do. No slot twice in a row.
        keys_only: leave the values where they are; scales come, those of the values too.
        backend: a name of BACKENDS, or "auto".

    A page whose slab is not in main memory is left out.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    _check(kv, host, backend)
    _check_moves(kv, host, "pages", pages, slots)
    run = implementation("fetch_pages", backend, kv.k_pages.device, "fetch_pages_")
    run(kv, host, pages, slots, keys_only)


def fetch_values_(
    kv: PagedKV,
    host: HostPages,
    quarters: torch.Tensor,
    slots: torch.Tensor,
    *,
    backend: str = "auto",
) -> None:
    """Copy the values of quarters of pages to slots that have the pages' keys and scales, in place.

    As `fetch_pages_`, but for:

    Args:
        quarters: int32 [num_kv_heads, n], logical page * QUARTERS + quarter; -1 for nothing to do.
        slots: int32 [num_kv_heads, n], where the pages are; -1 for nothing to do.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    _check(kv, host, backend)
    _check_moves(kv, host, "quarters", quarters, slots)
    size, width = kv.k_pages.shape[2:]
    if size % QUARTERS or size // QUARTERS * width * kv.k_pages.element_size() % VECTOR_BYTES:
        raise ValueError(
            f"k_pages: a quarter of a page must be whole tokens and a multiple of {VECTOR_BYTES}"
            f" bytes, a page has {size} tokens of {width * kv.k_pages.element_size()} bytes"
        )
    run = implementation("fetch_pages", backend, kv.k_pages.device, "fetch_values_")
    run(kv, host, quarters, slots)


def _check_moves(
    kv: PagedKV, host: HostPages, name: str, listed: torch.Tensor, slots: torch.Tensor
) -> None:
    """Check what is listed for each KV head, and where it goes."""
    require_shape(name, listed, (kv.k_pages.shape[1], None))
    require_shape("slots", slots, listed.shape)
    for label, tensor in ((name, listed), ("slots", slots)):
        require_dtype(label, tensor, (torch.int32,))
        require_unit_stride(label, tensor)
    require_same_device(k_pages=kv.k_pages, bases=host.bases, **{name: listed}, slots=slots)


def _check(kv: PagedKV, host: HostPages, backend: str) -> None:
    """Check that slots are records, and the slabs' addresses."""
    pages = kv.k_pages
    require_shape("k_pages", pages, (None, None, None, None))
    require_dtype("k_pages", pages, (*FLOAT_DTYPES, torch.float8_e4m3fn))
    check_values(kv, backend)
    if kv.v_pages.stride() != pages.stride():
        raise ValueError("v_pages: expected the strides of k_pages")
    if pages.stride()[2:] != (pages.shape[3], 1):
        raise ValueError("k_pages: the tokens of a page and KV head must be one run of memory")
    if kv.k_scales is not None and kv.k_scales.stride(0) * 4 != pages.stride(0):
        raise ValueError("k_scales: expected in one record with k_pages")
    if pages.device.type != "meta":
        storages = {
            tensor.untyped_storage().data_ptr()
            for tensor in (pages, kv.v_pages, kv.k_scales, kv.v_scales)
            if tensor is not None
        }
        if len(storages) > 1:
            raise ValueError("v_pages: expected in one record with k_pages, and so their scales")
    for name, elements in (
        ("a run (a page of one KV head)", pages.shape[2] * pages.shape[3]),
        ("a record (k_pages.stride(0))", pages.stride(0)),
        ("from KV head to KV head (k_pages.stride(1))", pages.stride(1)),
        ("from keys to values", kv.v_pages.storage_offset() - pages.storage_offset()),
    ):
        size = elements * pages.element_size()
        if size % VECTOR_BYTES:
            raise ValueError(
                f"k_pages: {name} must be a multiple of {VECTOR_BYTES} bytes, has {size}"
            )
    require_shape("host.bases", host.bases, (None,))
    require_dtype("host.bases", host.bases, (torch.int64,))
    require_unit_stride("host.bases", host.bases)
    require_positive(**{"host.slab_pages": host.slab_pages})
