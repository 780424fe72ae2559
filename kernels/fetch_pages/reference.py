"""Moving pages in plain PyTorch: slabs are looked at by their addresses, as the kernels do."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from ..paging import one_head
from ..types import QUARTERS, HostPages, PagedKV


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


def _moves(
    kv: PagedKV, host: HostPages, listed: torch.Tensor, slots: torch.Tensor, per_page: int
) -> Iterator[tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]]:
    """What is listed, `per_page` numbers to a page, and the `_parts` of its page."""
    record_bytes = kv.k_pages.stride(0) * kv.k_pages.element_size()
    for head, (row, targets) in enumerate(zip(listed.tolist(), slots.tolist(), strict=True)):
        part = one_head(kv, head)
        skipped = head * kv.k_pages.stride(1) * kv.k_pages.element_size()
        for number, slot in zip(row, targets, strict=True):
            if number < 0 or slot < 0:
                continue
            record = _record(host, number // per_page, record_bytes)
            if record is not None:
                yield number, _parts(part, slot, record[skipped:])


def fetch_pages_(
    kv: PagedKV, host: HostPages, pages: torch.Tensor, slots: torch.Tensor, keys_only: bool
) -> None:
    """See `hipcli.kernels.fetch_pages.fetch_pages_`."""
    for _, (keys, values, *scales) in _moves(kv, host, pages, slots, 1):
        for here, there in (keys, *scales) if keys_only else (keys, values, *scales):
            here.copy_(there)


def fetch_values_(
    kv: PagedKV, host: HostPages, quarters: torch.Tensor, slots: torch.Tensor
) -> None:
    """See `hipcli.kernels.fetch_pages.fetch_values_`."""
    for number, (_, (here, there), *_) in _moves(kv, host, quarters, slots, QUARTERS):
        some = number % QUARTERS
        here.chunk(QUARTERS)[some].copy_(there.chunk(QUARTERS)[some])
