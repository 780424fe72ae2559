"""Where pages lie, and how they come from a session's files and go back to them.

On a CPU the files are mapped: pages and files are one. On a GPU pages are tensors there, and a
thread copies finished pages to the files while the next chunk runs.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.mapping import AddressRange

# Pages that travel between device and file at once: 4 MiB of a layer of an 8B model.
STAGED_PAGES = 16


LayerFiles = Sequence[tuple[Path, Path]]

# Told of rows of a file on their way: the first one's number, and uint8 [n, bytes of a row].
Seen = Callable[[int, np.ndarray], None]


class HostMemory:
    """Pages in the address space of the process, a session's files mapped under them.

    Args:
        layout: shape of a page and of its summary.
        capacity: pages a layer.
        device: the CPU.

    Attributes:
        pages: per layer [capacity, 2, num_kv_heads, page_size, head_dim].
        summaries: per layer [num_kv_heads, capacity, 2, head_dim], a view of memory in which a
            page's summary lies in one piece, so that a file of them grows at its end.
    """

    def __init__(self, layout: KVLayout, capacity: int, device: torch.device) -> None:
        self._layout = layout
        self._checks: PageChecks | None = None
        self._bytes: list[tuple[np.ndarray, np.ndarray]] = []
        self._ranges: list[tuple[AddressRange, AddressRange]] = []
        self.pages: list[torch.Tensor] = []
        self.summaries: list[torch.Tensor] = []
        for _ in range(layout.num_layers):
            pages = AddressRange(capacity * layout.page_bytes)
            index = AddressRange(capacity * layout.summary_bytes)
            self._ranges.append((pages, index))
            self.pages.append(pages.tensor(layout.dtype, (capacity, *layout.page_shape)))
            summaries = index.tensor(layout.dtype, (capacity, *layout.summary_shape))
            self.summaries.append(summaries.transpose(0, 1))
            self._bytes.append((_as_bytes(self.pages[-1], 2), _as_bytes(summaries, 1)))

    def attach(
        self, files: LayerFiles, file_pages: int, checks: PageChecks, *, shared: bool
    ) -> None:
        """Map the files; with `shared` what is written reaches them."""
        self._checks = checks
        for (page_file, index_file), (pages, index) in zip(files, self._ranges, strict=True):
            pages.map_file(page_file, file_pages * self._layout.page_bytes, shared=shared)
            index.map_file(index_file, file_pages * self._layout.summary_bytes, shared=shared)

    def load(self, first: int, last: int) -> None:
        """The mapping is the pages; each is compared with its checksums when it is first used."""
        if self._checks is not None:
            self._checks.expect(first, last)

    def compare(self, part: int, layer: int, pages: torch.Tensor | None) -> None:
        """Compare pages (None: all) with their checksums, as `PageChecks.compare` says."""
        if self._checks is not None:
            wanted = None if pages is None else pages.numpy()
            self._checks.compare(part, layer, wanted, self._rows(part, layer))

    def _rows(self, part: int, layer: int) -> np.ndarray:
        pages, index = self._bytes[layer]
        return index[:, 0] if part == SUMMARY else pages[:, (KEYS, VALUES).index(part)]

    def save(self, first: int, last: int) -> int:
        """Pages are in the file as they are written; what is left to write are checksums."""
        if self._checks is not None:
            for layer in range(self._layout.num_layers):
                for part in (KEYS, VALUES, SUMMARY):
                    rows = self._rows(part, layer)[first:last]
                    self._checks.record(part, layer, first, rows)
        return last

    def flush(self) -> None:
        """Nothing is under way."""


class DeviceMemory:
    """Pages as tensors on a device, copied to and from a session's files.

    Args:
        layout: shape of a page and of its summary.
        capacity: pages a layer.
        device: where.

    Attributes:
        pages: per layer [capacity, 2, num_kv_heads, page_size, head_dim].
        summaries: per layer [num_kv_heads, capacity, 2, head_dim], contiguous.
    """

    def __init__(self, layout: KVLayout, capacity: int, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        # Zeros: a half-filled page goes to the file whole, and with it whatever memory held.
        heads, *summary = layout.summary_shape
        shapes = ((capacity, *layout.page_shape), (heads, capacity, *summary))
        self.pages, self.summaries = (
            [
                torch.zeros(shape, dtype=layout.dtype, device=device)
                for _ in range(layout.num_layers)
            ]
            for shape in shapes
        )
        self._files: LayerFiles = ()
        self._checks: PageChecks | None = None
        self._pending: deque[tuple[int, Future[None]]] = deque()
        self._saved = 0
        self._thread = ThreadPoolExecutor(1, "hip-save")
        weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)

    def attach(
        self, files: LayerFiles, file_pages: int, checks: PageChecks, *, shared: bool
    ) -> None:
        """Take the files to load from and, with `shared`, to save to."""
        self._files, self._checks = files, checks

    def load(self, first: int, last: int) -> None:
        """Copy pages [first, last) and their summaries from the files to the device.

        Raises:
            DamagedSessionError: one of them is not what was written.
        """
        if self._checks is None:
            return
        self._saved = last
        self._checks.expect(first, last)
        copier = _Copier(self._layout, self._device, self._now())
        for layer, (page_file, index_file) in enumerate(self._files):
            pages, index = _per_part(self._checks.compare_rows, layer)
            copier.read(page_file, self.pages[layer], first, last, pages)
            copier.read(index_file, self.summaries[layer].transpose(0, 1), first, last, index)
        copier.finish()

    def compare(self, part: int, layer: int, pages: torch.Tensor | None) -> None:
        """Nothing to do: pages are compared on their way to the device."""

    def save(self, first: int, last: int) -> int:
        """Start copying pages [first, last) to the files; how many pages have arrived so far."""
        if self._checks is None:
            return last
        job = self._thread.submit(
            self._write, self._files, self._checks, (first, last), self._now()
        )
        self._pending.append((last, job))
        self._collect(wait=False)
        return self._saved

    def flush(self) -> None:
        """Wait for every copy; raise what went wrong with one."""
        self._collect(wait=True)

    def _now(self) -> "torch.cuda.Event | None":
        """An event after everything the device was told so far."""
        if self._device.type != "cuda":
            return None
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def _collect(self, *, wait: bool) -> None:
        while self._pending and (wait or self._pending[0][1].done()):
            last, future = self._pending.popleft()
            future.result()
            self._saved = last

    def _write(
        self,
        files: LayerFiles,
        checks: PageChecks,
        pages: tuple[int, int],
        ready: "torch.cuda.Event | None",
    ) -> None:
        copier = _Copier(self._layout, self._device, ready)
        for layer, (page_file, index_file) in enumerate(files):
            page_seen, index_seen = _per_part(checks.record, layer)
            copier.write(page_file, self.pages[layer], *pages, page_seen)
            copier.write(index_file, self.summaries[layer].transpose(0, 1), *pages, index_seen)


def _as_bytes(rows: torch.Tensor, parts: int) -> np.ndarray:
    """A contiguous tensor on the CPU as uint8 [rows, parts, bytes of a part]; shares its memory."""
    flat: np.ndarray = rows.flatten().view(torch.uint8).numpy()
    return flat.reshape(len(rows), parts, -1)


def _per_part(act: Callable[[int, int, int, np.ndarray], None], layer: int) -> tuple[Seen, Seen]:
    """`act(part, layer, first, rows)` for rows of a page file, and of an index file."""

    def pages(first: int, rows: np.ndarray) -> None:
        halves = rows.reshape(len(rows), 2, -1)
        act(KEYS, layer, first, halves[:, 0])
        act(VALUES, layer, first, halves[:, 1])

    def index(first: int, rows: np.ndarray) -> None:
        act(SUMMARY, layer, first, rows)

    return pages, index


# A piece on its way to a file: turn of its buffer, first row, number of rows, bytes.
_Waiting = tuple[int, int, int, memoryview]


def _rows_of(raw: memoryview, count: int) -> np.ndarray:
    """uint8 [count, bytes of a row]."""
    return np.frombuffer(raw, np.uint8).reshape(count, -1)


class _Copier:
    """Copies rows between tensors on the device and files, through two pinned buffers.

    Args:
        layout: the larger of a page and a summary sizes the buffers.
        device: of the tensors.
        ready: an event after which the rows may be read or written.
    """

    def __init__(
        self, layout: KVLayout, device: torch.device, ready: "torch.cuda.Event | None" = None
    ) -> None:
        cuda = device.type == "cuda"
        size = STAGED_PAGES * layout.page_bytes
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._turn = 0
        self._stream = torch.cuda.Stream(device) if cuda else None
        self._events = [torch.cuda.Event() for _ in range(2)] if cuda else []
        if self._stream is not None and ready is not None:
            self._stream.wait_event(ready)

    def _staged(self, rows: torch.Tensor) -> tuple[torch.Tensor, memoryview]:
        """A buffer for `rows` as a tensor and as bytes; free again two calls later."""
        self._turn ^= 1
        num_bytes = rows.numel() * rows.element_size()
        raw = self._buffers[self._turn][:num_bytes]
        return raw.view(rows.dtype).view(rows.shape), memoryview(raw.numpy().data)

    def _pieces(self, rows: torch.Tensor, first: int, last: int) -> list[tuple[int, torch.Tensor]]:
        row_bytes = rows[0].numel() * rows.element_size()
        step = max(1, self._buffers[0].numel() // row_bytes)
        starts = range(first, last, step)
        return [(start, rows[start : min(start + step, last)]) for start in starts]

    def read(self, path: Path, rows: torch.Tensor, first: int, last: int, seen: Seen) -> None:
        """Rows [first, last) of the file become those of the tensor, asynchronously."""
        with open(path, "rb", buffering=0) as file:
            for start, piece in self._pieces(rows, first, last):
                if self._events:
                    self._events[self._turn ^ 1].synchronize()
                tensor, raw = self._staged(piece)
                done, offset = 0, start * (len(raw) // len(piece))
                while done < len(raw):
                    count = os.preadv(file.fileno(), [raw[done:]], offset + done)
                    if count == 0:
                        raise OSError(f"{path.name} is shorter than it was")
                    done += count
                seen(start, _rows_of(raw, len(piece)))
                if self._stream is None:
                    piece.copy_(tensor)
                    continue
                with torch.cuda.stream(self._stream):
                    piece.copy_(tensor, non_blocking=True)
                    self._events[self._turn].record()

    def write(self, path: Path, rows: torch.Tensor, first: int, last: int, seen: Seen) -> None:
        """Rows [first, last) of the tensor become those of the file.

        While one piece is written to the file the next one comes from the device.
        """
        fd = os.open(path, os.O_WRONLY)
        try:
            waiting: _Waiting | None = None
            for start, piece in self._pieces(rows, first, last):
                tensor, raw = self._staged(piece)
                if self._stream is None:
                    tensor.copy_(piece)
                else:
                    with torch.cuda.stream(self._stream):
                        tensor.copy_(piece, non_blocking=True)
                        self._events[self._turn].record()
                self._put(fd, waiting, seen)
                waiting = (self._turn, start, len(piece), raw)
            self._put(fd, waiting, seen)
        finally:
            os.close(fd)

    def _put(self, fd: int, waiting: _Waiting | None, seen: Seen) -> None:
        if waiting is None:
            return
        turn, start, count, raw = waiting
        if self._events:
            self._events[turn].synchronize()
        seen(start, _rows_of(raw, count))
        done, offset = 0, start * (len(raw) // count)
        while done < len(raw):
            done += os.pwrite(fd, raw[done:], offset + done)

    def finish(self) -> None:
        """What was read is visible to the device's current stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._stream.synchronize()
