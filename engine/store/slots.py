"""Which page of which KV head stands in which slot of a device, planned on the device itself.

A slot holds the keys of one page and one KV head, and of its values those quarters that were wanted
so far. Who is to make way is the slot that was wanted longest ago. Everything is a tensor operation
of fixed shapes on the device and nothing waits for it, so a CUDA graph can hold a plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hipcli.kernels.plan_fetch import MOST, WHOLE, plan_fetch_, plan_values_
from hipcli.kernels.types import QUARTERS, SlotTables

_NEVER = torch.iinfo(torch.int32).max


@dataclass(frozen=True, slots=True)
class Moves:
    """What has to be brought into which slots.

    Args:
        pages: int32 [rows, n] logical pages, or quarters of pages, -1 for nothing to do; a row is a
            KV head, or a KV head of a layer after the other.
        slots: int32 [rows, n], where to.
    """

    pages: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tables, owners, stamps and which values are there of some KV heads, each [rows, ...]: views,
    changed in place."""

    tables: torch.Tensor
    owners: torch.Tensor
    stamps: torch.Tensor
    values: torch.Tensor


class Slots:
    """The slots of all layers.

    Args:
        shape: layers, KV heads, logical pages, slots.
        device: of the tensors.

    Attributes:
        tables: int32 [layers, num_kv_heads, pages], the slot of each page or -1; a view.
        counts: int64 [3], pages wanted and pages missed so far, and quarters of keys or values that
            came.
    """

    def __init__(self, shape: tuple[int, int, int, int], device: torch.device) -> None:
        layers, heads, pages, slots = shape
        self._pages, self._slots = pages, slots
        # One place more than there are: there goes what concerns no page or no slot.
        self._tables = torch.full((layers, heads, pages + 1), -1, dtype=torch.int32, device=device)
        self._owners = torch.full((layers, heads, slots + 1), -1, dtype=torch.int32, device=device)
        self._stamps = torch.zeros((layers, heads, slots + 1), dtype=torch.int32, device=device)
        shape_of_values = (layers, heads, slots + 1, QUARTERS)
        self._values = torch.zeros(shape_of_values, dtype=torch.uint8, device=device)
        self._clock = torch.zeros(1, dtype=torch.int32, device=device)
        self._kept = torch.tensor([0, pages], dtype=torch.int32, device=device)
        self._sink_pages, self._kept_from = self._kept[:1], self._kept[1:]
        self.tables = self._tables[:, :, :pages]
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)

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

    def take(self, layer: int, wanted: torch.Tensor, *, keys_only: bool = False) -> Moves:
        """Slots for all wanted pages of a layer.

        Those that have one keep it. The caller sees to it that sinks, kept pages and the wanted
        ones fit the slots together.

        Args:
            layer: which layer.
            wanted: int32 [num_kv_heads, n], -1 for none, in any order, maybe repeated.
            keys_only: their values are not wanted, see `take_values`.

        Returns:
            moves [num_kv_heads, n]: what stands in no slot yet, or without values that are wanted.
        """
        return self._take(self._rows(layer), wanted, keys_only)

    def take_values(self, layer: int, quarters: torch.Tensor) -> Moves:
        """Which values are to come for pages that have slots.

        Args:
            layer: which layer.
            quarters: int32 [num_kv_heads, n], page * QUARTERS + quarter, -1 for none.

        Returns:
            moves [num_kv_heads, n] of quarters.
        """
        backend = "auto" if quarters.shape[1] <= MOST else "reference"
        tables = self._as_tables(self._rows(layer))
        return Moves(*plan_values_(tables, quarters, backend=backend))

    def _rows(self, layer: int) -> _Rows:
        whole = (self._tables, self._owners, self._stamps, self._values)
        return _Rows(*(x[layer] for x in whole))

    def _as_tables(self, rows: _Rows) -> SlotTables:
        """What an operator takes, without the places that are no page or no slot."""
        owners, stamps, values = (
            x[:, : self._slots] for x in (rows.owners, rows.stamps, rows.values)
        )
        tables = rows.tables[:, : self._pages]
        return SlotTables(tables, owners, stamps, self._clock, self._kept, self.counts, values)

    def take_in_all(self, runs: Sequence[range]) -> Moves:
        """Slots for runs of pages in all layers.

        Returns:
            moves [layers * num_kv_heads, n].
        """
        device = self._tables.device
        parts = [torch.arange(x.start, x.stop, dtype=torch.int32, device=device) for x in runs]
        wanted = torch.cat(parts)
        whole = (self._tables, self._owners, self._stamps, self._values)
        rows = _Rows(*(x.flatten(0, 1) for x in whole))
        counts = self.counts.clone()
        moves = self._take(rows, wanted.expand(len(rows.tables), -1), False)
        # Sinks and window are no part of what a hit rate is about.
        self.counts.copy_(counts)
        return moves

    def _take(self, rows: _Rows, wanted: torch.Tensor, keys_only: bool) -> Moves:
        nowhere, no_slot = self._pages, self._slots
        if wanted.device.type == "cuda" and max(wanted.shape[1], no_slot) <= MOST:
            # The same plan, but for who makes way of those that are equally old, in one launch.
            return Moves(*plan_fetch_(self._as_tables(rows), wanted, keys_only=keys_only))
        self._clock.add_(1)
        pages = wanted.masked_fill(wanted < 0, nowhere).sort(1).values.long()
        real = pages < nowhere
        new = torch.ones_like(real)
        new[:, 1:] = pages[:, 1:] != pages[:, :-1]
        slots = rows.tables.gather(1, pages).long()
        missed = real & new & (slots < 0)
        found = slots.masked_fill(~real | (slots < 0), no_slot)
        # The quarters of a slot as one.
        values = rows.values.view(torch.int32).squeeze(-1)
        again = torch.zeros_like(missed)
        if not keys_only:
            again = real & new & (slots >= 0) & (values.gather(1, found) != WHOLE)
        come = (missed | again).sum() * (QUARTERS if keys_only else 2 * QUARTERS)
        self.counts.add_(torch.stack(((real & new).sum(), missed.sum(), come)))
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
        target = torch.where(again, found, victims)
        values.scatter_(1, target, 0 if keys_only else WHOLE)
        return Moves(*(x.masked_fill(~(missed | again), -1).int() for x in (pages, target)))
