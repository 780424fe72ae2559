"""Which page of which KV head stands in which slot of a device, planned on the device itself.

A slot holds the keys and values of one page and one KV head. Who is to make way is the slot that
was wanted longest ago. Everything is a tensor operation of fixed shapes on the device and nothing
waits for it, so a CUDA graph can hold a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_NEVER = torch.iinfo(torch.int32).max


@dataclass(frozen=True, slots=True)
class Moves:
    """What has to be brought into which slots.

    Args:
        pages: int32 [rows, n] logical pages, -1 for nothing to do; a row is a KV head, or a KV head
            of a layer after the other.
        slots: int32 [rows, n], where to.
    """

    pages: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tables, owners and stamps of some KV heads, each [rows, ...]: views, changed in place."""

    tables: torch.Tensor
    owners: torch.Tensor
    stamps: torch.Tensor


class Slots:
    """The slots of all layers.

    Args:
        shape: layers, KV heads, logical pages, slots.
        device: of the tensors.

    Attributes:
        tables: int32 [layers, num_kv_heads, pages], the slot of each page or -1; a view.
        counts: int64 [2], pages wanted and pages missed so far.
    """

    def __init__(self, shape: tuple[int, int, int, int], device: torch.device) -> None:
        layers, heads, pages, slots = shape
        self._pages, self._slots = pages, slots
        # One place more than there are: there goes what concerns no page or no slot.
        self._tables = torch.full((layers, heads, pages + 1), -1, dtype=torch.int32, device=device)
        self._owners = torch.full((layers, heads, slots + 1), -1, dtype=torch.int32, device=device)
        self._stamps = torch.zeros((layers, heads, slots + 1), dtype=torch.int32, device=device)
        self._clock = torch.zeros(1, dtype=torch.int32, device=device)
        self._kept_from = torch.full((1,), pages, dtype=torch.int32, device=device)
        self._sink_pages = torch.zeros(1, dtype=torch.int32, device=device)
        self.tables = self._tables[:, :, :pages]
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)

    def keep(self, sink_pages: int, first: int) -> None:
        """From now on the first pages, and those from `first` on, make no way."""
        self._sink_pages.fill_(sink_pages)
        self._kept_from.fill_(first)

    def forget(self, page: int) -> None:
        """Pages from this one on are gone; their slots are free."""
        gone = self._owners >= page
        self._owners.masked_fill_(gone, -1)
        self._stamps.masked_fill_(gone, 0)
        self.tables[:, :, page:].fill_(-1)

    def take(self, layer: int, wanted: torch.Tensor) -> Moves:
        """Slots for all wanted pages of a layer.

        Those that have one keep it. The caller sees to it that sinks, kept pages and the wanted
        ones fit the slots together.

        Args:
            layer: which layer.
            wanted: int32 [num_kv_heads, n], -1 for none, in any order, maybe repeated.

        Returns:
            moves [num_kv_heads, n]: what stands in no slot yet.
        """
        tables, owners, stamps = self._tables[layer], self._owners[layer], self._stamps[layer]
        return self._take(_Rows(tables, owners, stamps), wanted)

    def take_in_all(self, runs: Sequence[range]) -> Moves:
        """Slots for runs of pages in all layers.

        Returns:
            moves [layers * num_kv_heads, n].
        """
        device = self._tables.device
        parts = [torch.arange(x.start, x.stop, dtype=torch.int32, device=device) for x in runs]
        wanted = torch.cat(parts)
        rows = _Rows(*(x.flatten(0, 1) for x in (self._tables, self._owners, self._stamps)))
        counts = self.counts.clone()
        moves = self._take(rows, wanted.expand(len(rows.tables), -1))
        # Sinks and window are no part of what a hit rate is about.
        self.counts.copy_(counts)
        return moves

    def _take(self, rows: _Rows, wanted: torch.Tensor) -> Moves:
        nowhere, no_slot = self._pages, self._slots
        self._clock.add_(1)
        pages = wanted.masked_fill(wanted < 0, nowhere).sort(1).values.long()
        real = pages < nowhere
        new = torch.ones_like(real)
        new[:, 1:] = pages[:, 1:] != pages[:, :-1]
        slots = rows.tables.gather(1, pages).long()
        missed = real & new & (slots < 0)
        self.counts.add_(torch.stack((real & new, missed)).sum((1, 2)))
        found = slots.masked_fill(~real | (slots < 0), no_slot)
        rows.stamps.scatter_(1, found, self._clock.expand_as(found))
        # The longest unwanted slots go first; what is wanted now has the newest stamp.
        owners = rows.owners[:, :no_slot]
        fixed = (owners >= self._kept_from) | ((owners >= 0) & (owners < self._sink_pages))
        ages = rows.stamps[:, :no_slot].masked_fill(fixed, _NEVER)
        order = ages.argsort(1)
        rank = (missed.cumsum(1) - 1).clamp(0, no_slot - 1)
        victims = order.gather(1, rank).masked_fill(~missed, no_slot)
        former = rows.owners.gather(1, victims).long()
        former.masked_fill_(~missed | (former < 0), nowhere)
        rows.tables.scatter_(1, former, -1)
        taken = pages.masked_fill(~missed, nowhere)
        rows.tables.scatter_(1, taken, victims.int())
        rows.owners.scatter_(1, victims, taken.int())
        rows.stamps.scatter_(1, victims, self._clock.expand_as(victims))
        moved = (pages, victims)
        return Moves(*(x.masked_fill(~missed, -1).int() for x in moved))
