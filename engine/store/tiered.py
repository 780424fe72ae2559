"""Pages in three tiers: slots on a device, slabs in main memory, and the disk.

A page that is full never changes. It is written through to its slab (or to the disk, where memory
has no room for it) once, so what makes way in the slots is simply overwritten.
"""

from collections.abc import Iterator

import torch

from hipcli.engine.store.behind import Behind
from hipcli.engine.store.checks import PageChecks
from hipcli.engine.store.copying import Copier
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.memory import (
    DeviceMemory,
    LayerFiles,
    contents,
    paged_kv,
    per_part,
    scales_of,
)
from hipcli.engine.store.slots import Moves, Slots
from hipcli.engine.store.streaming import Stream
from hipcli.engine.store.tiers import TierPlan, Traffic
from hipcli.kernels.fetch_pages import fetch_pages_, fetch_values_
from hipcli.kernels.types import QUARTERS, HostPages


class TieredMemory(DeviceMemory):
    """Pages in slots of a device, with all of them behind it; see the module.

    Args:
        layout: shape of a page and of its summary.
        capacity: pages a layer.
        device: where the slots are.
        plan: what lies where.
        backend: of the kernels.

    Attributes:
        pages: per layer [slots, 2, num_kv_heads, page_size, head_dim].
        scales: per layer fp32 [slots, 2, num_kv_heads] of quantised pages, else None.
        summaries: per layer of all pages, as in `DeviceMemory`.
        slots: which page is where, per KV head.
        behind: all pages that are full.
        slabs: those of them that are not on the disk alone.
        through: per layer the first page that is on the device alone.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity: int,
        device: torch.device,
        plan: TierPlan,
        backend: str = "reference",
    ) -> None:
        super().__init__(layout, capacity, device, rows=plan.slots)
        self._capacity, self._plan, self._backend = capacity, plan, backend
        shape = (layout.num_layers, layout.num_kv_heads, capacity, plan.slots)
        self.slots = Slots(shape, device)
        self._kv = [
            paged_kv(pages, scales, table)
            for pages, scales, table in zip(self.pages, self.scales, self.slots.tables, strict=True)
        ]
        self.behind = Behind(layout, capacity, plan, device, self._threads)
        self._stream = Stream(layout, capacity, device, self.behind, backend)
        self.slabs = self.behind.slabs
        self.through = [0] * layout.num_layers
        self._heads = torch.arange(layout.num_kv_heads, device=device)

    @property
    def traffic(self) -> Traffic:
        """So far; waits for the device."""
        wanted, missed, quarters = self.slots.counts.tolist()
        # Of keys or values of a page and KV head, its share of the scales included.
        quarter_bytes = self._layout.page_bytes / (2 * QUARTERS * self._layout.num_kv_heads)
        bytes_in = self._stream.bytes_in + round(quarters * quarter_bytes)
        return Traffic(wanted, missed, bytes_in, self.behind.bytes_out)

    def attach(
        self, files: LayerFiles, file_pages: int, checks: PageChecks, *, shared: bool
    ) -> None:
        super().attach(files, file_pages, checks, shared=shared)
        self.behind.attach((pages for pages, _ in files), checks, shared=shared)

    @property
    def overflow_bytes(self) -> int:
        """Size of a file for the pages that memory has no room for."""
        return self.behind.overflow_bytes

    def overflow_to(self, fd: int) -> None:
        """Put an open file of `overflow_bytes` under those pages."""
        self.behind.overflow_to(fd)

    def write_through(self, layer: int, last: int) -> None:
        """Copy the pages before `last` that are on the device alone to where they stay."""
        first = self.through[layer]
        if last <= first:
            return
        self.slabs.grow(last)
        for begin, end in self.slabs.runs(first, last):
            self.behind.send(layer, begin, self._from_slots(layer, begin, end))
        self.through[layer] = last

    def settle(self) -> None:
        """What the device is told from here on finds everything written through."""
        self.behind.wait()

    def _from_slots(self, layer: int, first: int, last: int) -> torch.Tensor:
        """Records of pages that are in slots in all heads: uint8 [n, page_bytes], a copy."""
        layout, n = self._layout, last - first
        rows = torch.zeros(n, layout.page_bytes, dtype=torch.uint8, device=self._device)
        slots = self.slots.tables[layer, :, first:last].T.long()
        for target, source in zip(self._parts(rows), self._parts(self.records[layer]), strict=True):
            target.copy_(source[slots, self._heads])
        return rows

    def _parts(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Keys, values and the scales of both in records: views [n, num_kv_heads, ...]."""
        layout = self._layout
        both = rows[:, : layout.content_bytes].unflatten(1, (2, layout.num_kv_heads, -1))
        parts = [both[:, 0], both[:, 1]]
        scales = scales_of(rows, layout)
        return parts if scales is None else [*parts, scales[:, 0], scales[:, 1]]

    def _host(self, layer: int) -> HostPages:
        return HostPages(self.slabs.bases[layer], self.slabs.slab_pages)

    def fetch(self, layer: int, moves: Moves, *, keys_only: bool = False) -> None:
        """Bring what a plan moves into its slots: whole pages, or keys and scales."""
        if self._backend == "triton":
            fetch_pages_(
                self._kv[layer],
                self._host(layer),
                moves.pages,
                moves.slots,
                keys_only=keys_only,
                backend="triton",
            )
            if self.slabs.all_readable:
                return
        self._fetch_by_host(layer, moves, keys_only)

    def fetch_values(self, layer: int, moves: Moves) -> None:
        """Bring the quarters of values that a plan moves; whose keys came alone is in memory that
        the device reads by itself."""
        kv, host = self._kv[layer], self._host(layer)
        fetch_values_(kv, host, moves.pages, moves.slots, backend=self._backend)

    def _fetch_by_host(self, layer: int, moves: Moves, keys_only: bool) -> None:
        # What the device does not read by itself the host has to be told of.
        pages, slots = moves.pages.cpu(), moves.slots.cpu()
        by_host = pages >= 0
        if self._backend == "triton":
            slabs = self.slabs.unreadable
            by_host &= slabs[pages.clamp(min=0).long() // self.slabs.slab_pages]
        heads, places = by_host.nonzero(as_tuple=True)
        if not len(heads):
            return
        pages, slots = pages[heads, places], slots[heads, places].long().to(self._device)
        wanted, which = pages.unique(return_inverse=True)
        rows = self.behind.records(layer, wanted)
        which, heads = which.to(self._device), heads.to(self._device)
        pairs = list(zip(self._parts(self.records[layer]), self._parts(rows), strict=True))
        if keys_only:
            del pairs[1]
        for target, source in pairs:
            target[slots, heads] = source[which, heads]

    def picked(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Records of any pages, int64 [n] ascending on the CPU: uint8 [n, page_bytes] on the
        device."""
        through = self.through[layer]
        parts = [
            self._from_slots(layer, page, page + 1) for page in pages[pages >= through].tolist()
        ]
        if len(parts) < len(pages):
            parts.insert(0, self.behind.records(layer, pages[pages < through]))
        return torch.cat(parts)

    def pieces(
        self, layer: int, first: int, last: int, values: bool = True
    ) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Pages [first, last) in pieces, as `Stream.pieces` gives them, what is on the device alone
        included."""
        through = self.through[layer]
        for begin, end, rows in self._stream.pieces(layer, (first, last), through, values):
            near = max(begin, through)
            if near < end:
                rows[near - begin :] = self._from_slots(layer, near, end)
            yield begin, end, rows

    def put(self, layer: int, first: int, pages: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Write pages from `first` on to where they stay, past the slots.

        Args:
            layer: which layer.
            first: page of the first row.
            pages: [n, 2, num_kv_heads, page_size, head_dim].
            scales: fp32 [n, 2, num_kv_heads] of quantised pages, else None.
        """
        last = first + len(pages)
        rows = torch.zeros(len(pages), self._layout.page_bytes, dtype=torch.uint8)
        contents(rows, self._layout).copy_(pages)
        mine = scales_of(rows, self._layout)
        if mine is not None and scales is not None:
            mine.copy_(scales)
        self.slabs.grow(last)
        for begin, end in self.slabs.runs(first, last):
            self.behind.put(layer, begin, rows[begin - first : end - first])
        self.through[layer] = last

    def clear(self, page: int) -> None:
        """Zeros in the slots of a page, in all layers."""
        for layer, records in enumerate(self.records):
            slots = self.slots.tables[layer, :, page].long()
            for part in self._parts(records)[:2]:
                part[slots, self._heads] = 0

    def rewrite_from(self, page: int) -> None:
        """Pages from this one on will be written anew."""
        self.through = [min(through, page) for through in self.through]

    @property
    def in_graphs(self) -> bool:
        """A CUDA graph can hold a `fetch`."""
        # Known for good only once all of them are taken.
        self.slabs.grow(self._capacity)
        return self.slabs.all_readable

    def save(self, first: int, last: int) -> int:
        for layer in range(self._layout.num_layers):
            self.write_through(layer, last)
            self.behind.finish(layer)
        return super().save(first, last)

    def _now(self) -> "torch.cuda.Event | None":
        return self.behind.after_all()

    def load(self, first: int, last: int) -> None:
        self.slabs.grow(last)
        super().load(first, last)
        if self._checks is not None:
            self.through = [max(through, last) for through in self.through]

    def _held(self, layer: int, first: int, last: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Runs of pages [first, last) that slabs have: the first of each, and their records."""
        for begin, end in self.slabs.runs(first, last):
            if self.slabs.holds(begin):
                yield begin, self.slabs.rows(layer, begin, end)

    def _read(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        first_page, last_page = pages
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.compare_rows, layer)
            for first, rows in self._held(layer, *pages):
                if rows.is_cpu:
                    copier.read_here(page_file, rows.numpy(), first, page_seen)
                else:
                    copier.read(page_file, rows, range(first, first + len(rows)), page_seen)
            summaries = self.summaries[layer].transpose(0, 1)[first_page:last_page]
            copier.read(index_file, summaries, range(first_page, last_page), index_seen)
        copier.finish()

    def _write(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        copier.wait()
        first_page, last_page = pages
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.record, layer)
            for first, rows in self._held(layer, *pages):
                if rows.is_cpu:
                    copier.write_here(page_file, rows.numpy(), first, page_seen)
                else:
                    copier.write(page_file, rows, range(first, first + len(rows)), page_seen)
            summaries = self.summaries[layer].transpose(0, 1)[first_page:last_page]
            copier.write(index_file, summaries, range(first_page, last_page), index_seen)
