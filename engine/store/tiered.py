"""Pages in three tiers: slots on a device, slabs in main memory, and the disk.

A page that is full never changes. It is written through to its slab (or to the disk, where memory
has no room for it) once, so what makes way in the slots is simply overwritten.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import torch

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.store.checks import PageChecks
from hipcli.engine.store.copying import Copier, staging
from hipcli.engine.store.disk_pages import DiskPages
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.memory import (
    DeviceMemory,
    LayerFiles,
    contents,
    paged_kv,
    per_part,
    scales_of,
)
from hipcli.engine.store.slabs import Slabs
from hipcli.engine.store.slots import Moves, Slots
from hipcli.engine.store.tiers import PIECE_PAGES, PIECES, TierPlan, Traffic
from hipcli.kernels.fetch_pages import fetch_pages_
from hipcli.kernels.types import HostPages

# Copies to the disk under way at once: each has a buffer of its own.
PENDING_WRITES = 64


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
        self.slabs = Slabs(layout, capacity, plan.slab_pages, plan.absent, device)
        self.disk = DiskPages(layout.page_bytes)
        self.through = [0] * layout.num_layers
        self._heads = torch.arange(layout.num_kv_heads, device=device)
        self._writes: list[deque[Future[None]]] = [deque() for _ in self.through]
        cuda = device.type == "cuda"
        self._side = torch.cuda.Stream(device) if cuda else None
        self._incoming = torch.cuda.Stream(device) if cuda else None
        self._scratch: list[torch.Tensor] = []
        self._bytes_in = self._bytes_out = 0

    @property
    def traffic(self) -> Traffic:
        """So far; waits for the device."""
        wanted, missed = self.slots.counts.tolist()
        streamed = self._bytes_in + missed * (self._layout.page_bytes // self._layout.num_kv_heads)
        return Traffic(wanted, missed, streamed, self._bytes_out)

    @property
    def _disk_pages(self) -> range:
        first, last = (slab * self._plan.slab_pages for slab in self._plan.absent)
        return range(first, min(last, self._capacity))

    def attach(
        self, files: LayerFiles, file_pages: int, checks: PageChecks, *, shared: bool
    ) -> None:
        super().attach(files, file_pages, checks, shared=shared)
        if self._disk_pages:
            self.disk.open_session((pages for pages, _ in files), writable=shared)

    @property
    def overflow_bytes(self) -> int:
        """Size of a file for the pages that memory has no room for."""
        return len(self._disk_pages) * self._layout.num_layers * self._layout.page_bytes

    def overflow_to(self, fd: int) -> None:
        """Put an open file of `overflow_bytes` under those pages."""
        self.disk.use(fd, self._disk_pages.start, len(self._disk_pages), len(self.through))

    def write_through(self, layer: int, last: int) -> None:
        """Copy the pages before `last` that are on the device alone to where they stay."""
        first = self.through[layer]
        if last <= first:
            return
        self.slabs.grow(last)
        for begin, end in self.slabs.runs(first, last):
            rows = self._from_slots(layer, begin, end)
            self._bytes_out += rows.nbytes
            if self.slabs.holds(begin):
                self._send(rows, self.slabs.rows(layer, begin, end))
            else:
                self._send_to_disk(layer, begin, rows)
        self.through[layer] = last

    def _send(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Copy records off the device beside what it computes."""
        if self._side is None:
            target.copy_(rows)
            return
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            target.copy_(rows, non_blocking=True)
        rows.record_stream(self._side)

    def _send_to_disk(self, layer: int, first: int, rows: torch.Tensor) -> None:
        buffer = staging(tuple(rows.shape), self._device)
        self._send(rows, buffer)
        done = self._sent()
        writes = self._writes[layer]
        writes.append(self._threads.submit(self._put, layer, first, buffer, done))
        if len(writes) > PENDING_WRITES // len(self._writes):
            self._settle(writes.popleft())

    def _put(
        self, layer: int, first: int, rows: torch.Tensor, done: "torch.cuda.Event | None"
    ) -> None:
        if done is not None:
            done.synchronize()
        self.disk.write(layer, first, rows.numpy())
        if self._checks is not None:
            per_part(self._checks.record, layer)[0](first, rows.numpy())

    def _sent(self) -> "torch.cuda.Event | None":
        """An event after everything that was sent off the device so far."""
        if self._side is None:
            return None
        event = torch.cuda.Event()
        event.record(self._side)
        return event

    def settle(self) -> None:
        """What the device is told from here on finds everything written through."""
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)

    def _settle(self, write: "Future[None]") -> None:
        try:
            write.result()
        except OSError as error:
            raise DoesNotFitError(
                f"keys and values cannot be written to the disk: {error.strerror or error}",
                "free disk space, raise --host-memory, or ask about less text",
            ) from None

    def _from_slots(self, layer: int, first: int, last: int) -> torch.Tensor:
        """Records of pages that are in slots in all heads: uint8 [n, page_bytes], a copy."""
        layout, n = self._layout, last - first
        rows = torch.zeros(n, layout.page_bytes, dtype=torch.uint8, device=self._device)
        slots = self.slots.tables[layer, :, first:last].T.long()
        for target, source in zip(
            self._parts(rows), self._parts(self._records[layer]), strict=True
        ):
            target.copy_(source[slots, self._heads])
        return rows

    def _parts(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Keys, values and the scales of both in records: views [n, num_kv_heads, ...]."""
        layout = self._layout
        both = rows[:, : layout.content_bytes].unflatten(1, (2, layout.num_kv_heads, -1))
        parts = [both[:, 0], both[:, 1]]
        scales = scales_of(rows, layout)
        return parts if scales is None else [*parts, scales[:, 0], scales[:, 1]]

    def fetch(self, layer: int, moves: Moves) -> None:
        """Bring what a plan moves into its slots."""
        if self._backend == "triton":
            host = HostPages(self.slabs.bases[layer], self.slabs.slab_pages)
            fetch_pages_(self._kv[layer], host, moves.pages, moves.slots, backend="triton")
            if self.slabs.all_readable:
                return
        self._fetch_by_host(layer, moves)

    def _fetch_by_host(self, layer: int, moves: Moves) -> None:
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
        rows = self.records(layer, wanted)
        which, heads = which.to(self._device), heads.to(self._device)
        for target, source in zip(
            self._parts(self._records[layer]), self._parts(rows), strict=True
        ):
            target[slots, heads] = source[which, heads]

    def records(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Records of pages that were written through, uint8 [n, page_bytes] on the device.

        Args:
            layer: which layer.
            pages: integers [n] on the CPU, ascending.
        """
        cuda = self._device.type == "cuda"
        if cuda and self._side is not None:
            self._side.synchronize()
        rows = staging((len(pages), self._layout.page_bytes), self._device)
        numbers = pages.tolist()
        self.slabs.grow(numbers[-1] + 1)
        away = []
        for place, page in enumerate(numbers):
            if self.slabs.holds(page):
                rows[place] = self.slabs.rows(layer, page, page + 1)[0]
            else:
                away.append((place, page))
        if away:
            self._read_disk(layer, away, rows.numpy())
        return rows.to(self._device)

    def _read_disk(self, layer: int, away: list[tuple[int, int]], rows: np.ndarray) -> None:
        """Read pages (place in `rows`, page) by several threads."""
        writes = self._writes[layer]
        while writes:
            self._settle(writes.popleft())
        jobs = [
            self._threads.submit(self.disk.read, layer, page, rows[place : place + 1])
            for place, page in away
        ]
        for job in jobs:
            job.result()
        if self._checks is not None:
            compare, _ = per_part(self._checks.compare_rows, layer)
            for place, page in away:
                compare(page, rows[place : place + 1])

    def picked(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Records of any pages, int64 [n] ascending on the CPU: uint8 [n, page_bytes] on the
        device."""
        through = self.through[layer]
        parts = [
            self._from_slots(layer, page, page + 1) for page in pages[pages >= through].tolist()
        ]
        if len(parts) < len(pages):
            parts.insert(0, self.records(layer, pages[pages < through]))
        return torch.cat(parts)

    def pieces(self, layer: int, first: int, last: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Pages [first, last) in pieces, one coming while the one before it is read.

        Yields:
            first page, the page behind the last one, and their records uint8 [n, page_bytes] on
            the device, which the next piece but one takes the place of.
        """
        starts = range(first, last, PIECE_PAGES)
        coming = self._bring(layer, first, last, 0) if starts else None
        for turn, begin in enumerate(starts):
            end, event = min(begin + PIECE_PAGES, last), coming
            if turn + 1 < len(starts):
                coming = self._bring(layer, end, last, turn + 1)
            rows = self._scratch[turn % PIECES][: end - begin]
            if event is not None:
                torch.cuda.current_stream(self._device).wait_event(event)
            near = max(begin, self.through[layer])
            if near < end:
                rows[near - begin :] = self._from_slots(layer, near, end)
            yield begin, end, rows

    def _bring(self, layer: int, first: int, last: int, turn: int) -> "torch.cuda.Event | None":
        """Start copying a piece from `first` on to the device, beside what it computes."""
        if not self._scratch:
            shape = (min(PIECE_PAGES, self._capacity), self._layout.page_bytes)
            # Written to outside of a pass too.
            with torch.inference_mode(False):
                for _ in range(PIECES):
                    rows = torch.empty(shape, dtype=torch.uint8, device=self._device)
                    self._scratch.append(rows)
        last = min(first + PIECE_PAGES, last, self.through[layer])
        rows = self._scratch[turn % PIECES]
        if first < last:
            self._bytes_in += (last - first) * self._layout.page_bytes
        if self._incoming is None or self._side is None:
            self._copy_in(layer, first, last, rows)
            return None
        # The piece that was in the same place has been asked for before this one.
        self._incoming.wait_stream(torch.cuda.current_stream(self._device))
        self._incoming.wait_stream(self._side)
        event = torch.cuda.Event()
        with torch.cuda.stream(self._incoming):
            self._copy_in(layer, first, last, rows)
            event.record()
        return event

    def _copy_in(self, layer: int, first: int, last: int, rows: torch.Tensor) -> None:
        for begin, end in self.slabs.runs(first, last):
            target = rows[begin - first : end - first]
            if self.slabs.holds(begin):
                target.copy_(self.slabs.rows(layer, begin, end), non_blocking=True)
            else:
                target.copy_(self.records(layer, torch.arange(begin, end)))

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
            part = rows[begin - first : end - first]
            if self.slabs.holds(begin):
                self.slabs.rows(layer, begin, end).copy_(part)
            else:
                self._put(layer, begin, part, None)
        self.through[layer] = last

    def clear(self, page: int) -> None:
        """Zeros in the slots of a page, in all layers."""
        for layer, records in enumerate(self._records):
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
        for layer, writes in enumerate(self._writes):
            self.write_through(layer, last)
            while writes:
                self._settle(writes.popleft())
        return super().save(first, last)

    def _now(self) -> "torch.cuda.Event | None":
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream(self._device))
        return self._sent()

    def load(self, first: int, last: int) -> None:
        self.slabs.grow(last)
        super().load(first, last)
        if self._checks is not None:
            self.through = [max(through, last) for through in self.through]

    def _held(self, layer: int, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        """Runs of pages [first, last) that memory has: the first of each, and their records."""
        for begin, end in self.slabs.runs(first, last):
            if self.slabs.holds(begin):
                yield begin, self.slabs.rows(layer, begin, end).numpy()

    def _read(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.compare_rows, layer)
            for first, rows in self._held(layer, *pages):
                copier.read_here(page_file, rows, first, page_seen)
            copier.read(index_file, self.summaries[layer].transpose(0, 1), *pages, index_seen)
        copier.finish()

    def _write(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        copier.wait()
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.record, layer)
            for first, rows in self._held(layer, *pages):
                copier.write_here(page_file, rows, first, page_seen)
            copier.write(index_file, self.summaries[layer].transpose(0, 1), *pages, index_seen)
