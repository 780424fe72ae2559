"""Moving pages in plain PyTorch: slabs are looked at by their addresses, as the kernels do."""

from __future__ import annotations

import ctypes

import torch

from ..paging import one_head, slots_of
from ..types import HostPages, PagedKV


def _record(host: HostPages, page: int, record_bytes: int) -> torch.Tensor | None:
    """Bytes of a page's record in main memory, a view; None where its slab is not there."""
    slab, place = divmod(page, host.slab_pages)
    base = int(host.bases[slab]) if slab < len(host.bases) else 0
    if base == 0:
        return None
    memory = (ctypes.c_uint8 * record_bytes).from_address(base + place * record_bytes)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _parts(kv: PagedKV, slot: int, record: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys, values and scales of one KV head: bytes in a slot, and those in a record."""
    pairs = []
    for tensor in (kv.k_pages, kv.v_pages, kv.k_scales, kv.v_scales):
        if tensor is not None:
            here = tensor[slot].flatten().view(torch.uint8)
            first = tensor.storage_offset() * tensor.element_size()
            first -= kv.k_pages.storage_offset() * kv.k_pages.element_size()
            pairs.append((here, record[first : first + len(here)]))
    return pairs


def _head(kv: PagedKV, head: int) -> tuple[PagedKV, int]:
    """One KV head alone, and the bytes from the record's begin to its keys."""
    return one_head(kv, head), head * kv.k_pages.stride(1) * kv.k_pages.element_size()


def fetch_pages_(kv: PagedKV, host: HostPages, pages: torch.Tensor, slots: torch.Tensor) -> None:
    """See `hipcli.kernels.fetch_pages.fetch_pages_`."""
    record_bytes = kv.k_pages.stride(0) * kv.k_pages.element_size()
    for head, (row, targets) in enumerate(zip(pages.tolist(), slots.tolist(), strict=True)):
        part, skipped = _head(kv, head)
        for page, slot in zip(row, targets, strict=True):
            if page < 0 or slot < 0:
                continue
            record = _record(host, page, record_bytes)
            if record is not None:
                for here, there in _parts(part, slot, record[skipped:]):
                    here.copy_(there)


def write_pages_(kv: PagedKV, host: HostPages, pages: torch.Tensor) -> None:
    """See `hipcli.kernels.fetch_pages.write_pages_`."""
    record_bytes = kv.k_pages.stride(0) * kv.k_pages.element_size()
    for page in pages[pages >= 0]:
        record = _record(host, int(page), record_bytes)
        if record is None:
            continue
        for head in range(kv.k_pages.shape[1]):
            part, skipped = _head(kv, head)
            slot = int(slots_of(part.page_table, page[None].long()))
            for here, there in _parts(part, slot, record[skipped:]):
                there.copy_(here)
