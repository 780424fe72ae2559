"""Pages on a GPU, and how they come from a session's files and go back to them.

They are tensors there, and threads copy finished pages to the files while the next chunk runs.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import torch

from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks
from hipcli.engine.store.copying import Copier, Seen
from hipcli.engine.store.layout import KVLayout
from hipcli.kernels.types import PagedKV

# Threads that copy between device and files, each some of the layers: checksums would slow down
# one alone.
COPY_THREADS = 4

LayerFiles = Sequence[tuple[Path, Path]]


class DeviceMemory:
    """Pages as tensors on a device, copied to and from a session's files.

    Args:
        layout: shape of a page and of its summary.
        capacity: pages a layer.
        device: where.
        rows: pages a layer that the device holds, where it holds fewer.

    Attributes:
        pages: per layer [capacity, 2, num_kv_heads, page_size, head_dim]; strided where scales
            lie between two pages.
        scales: per layer fp32 [capacity, 2, num_kv_heads] of quantised pages, else None.
        summaries: per layer [num_kv_heads, capacity, 2, head_dim], contiguous.
        records: per layer uint8 [capacity, page_bytes], what a file holds of a page: pages and
            scales are views of them.
    """

    def __init__(
        self, layout: KVLayout, capacity: int, device: torch.device, rows: int | None = None
    ) -> None:
        self._layout = layout
        self._device = device
        # Zeros: a half-filled page goes to the file whole, and with it whatever memory held.
        heads, *summary = layout.summary_shape
        self.summaries = [
            torch.zeros((heads, capacity, *summary), dtype=layout.dtype, device=device)
            for _ in range(layout.num_layers)
        ]
        self.records = [
            torch.zeros(
                capacity if rows is None else rows,
                layout.page_bytes,
                dtype=torch.uint8,
                device=device,
            )
            for _ in range(layout.num_layers)
        ]
        self.pages = [contents(records, layout) for records in self.records]
        self.scales = [scales_of(records, layout) for records in self.records]
        self._files: LayerFiles = ()
        self._checks: PageChecks | None = None
        self._pending: deque[tuple[int, list[Future[None]]]] = deque()
        self._saved = 0
        self._threads = ThreadPoolExecutor(COPY_THREADS, "hip-copy")
        weakref.finalize(self, self._threads.shutdown, wait=False, cancel_futures=True)

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
        jobs = self._submit(self._read, self._checks, (first, last))
        # All of them: an error must not leave copies under way.
        wait(jobs)
        for job in jobs:
            job.result()

    @property
    def overflow_bytes(self) -> int:
        """Nothing: pages are on the device or nowhere."""
        return 0

    def overflow_to(self, fd: int) -> None:
        """Nothing to do, see `overflow_bytes`."""

    def written(self, page: int) -> None:
        """Nothing to do: pages are no mapping."""

    def relieve(self) -> None:
        """Nothing to do: no main memory is taken."""

    def compare(self, part: int, layer: int, pages: torch.Tensor | None) -> None:
        """Nothing to do: pages are compared on their way to the device."""

    def save(self, first: int, last: int) -> int:
        """Start copying pages [first, last) to the files; how many pages have arrived so far."""
        if self._checks is None:
            return last
        self._pending.append((last, self._submit(self._write, self._checks, (first, last))))
        self._collect(whole=False)
        return self._saved

    def flush(self) -> None:
        """Wait for every copy; raise what went wrong with one."""
        self._collect(whole=True)

    def _now(self) -> "torch.cuda.Event | None":
        """An event after everything the device was told so far."""
        if self._device.type != "cuda":
            return None
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def _collect(self, *, whole: bool) -> None:
        while self._pending and (whole or all(job.done() for job in self._pending[0][1])):
            last, jobs = self._pending.popleft()
            for job in jobs:
                job.result()
            self._saved = last

    def _submit(
        self, act: Callable[..., None], checks: PageChecks, pages: tuple[int, int]
    ) -> list[Future[None]]:
        """`act(copier, layers, checks, pages)` for all layers, some in each thread."""
        layers = range(self._layout.num_layers)
        shares = [layers[place::COPY_THREADS] for place in range(COPY_THREADS)]
        ready = self._now()
        return [
            self._threads.submit(self._act, act, share, checks, pages, ready)
            for share in shares
            if share
        ]

    def _act(
        self,
        act: Callable[..., None],
        layers: range,
        checks: PageChecks,
        pages: tuple[int, int],
        ready: "torch.cuda.Event | None",
    ) -> None:
        act(Copier(self._layout, self._device, ready), layers, checks, pages)

    def _runs(self, first: int, last: int) -> Iterator[tuple[Sequence[int], int]]:
        """Pages [first, last) that are here, and the row where each run of them begins."""
        yield range(first, last), first

    def _read(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.compare_rows, layer)
            summaries = self.summaries[layer].transpose(0, 1)
            for run, first in self._runs(*pages):
                rows = slice(first, first + len(run))
                copier.read(page_file, self.records[layer][rows], run, page_seen)
                copier.read(index_file, summaries[rows], run, index_seen)
        copier.finish()

    def _write(
        self, copier: Copier, layers: range, checks: PageChecks, pages: tuple[int, int]
    ) -> None:
        for layer in layers:
            page_file, index_file = self._files[layer]
            page_seen, index_seen = per_part(checks.record, layer)
            summaries = self.summaries[layer].transpose(0, 1)
            for run, first in self._runs(*pages):
                rows = slice(first, first + len(run))
                copier.write(page_file, self.records[layer][rows], run, page_seen)
                copier.write(index_file, summaries[rows], run, index_seen)


def contents(records: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """Keys and values in records uint8 [capacity, page_bytes]: a view, see `DeviceMemory.pages`."""
    contents = records[:, : layout.content_bytes].view(layout.page_dtype)
    return contents.unflatten(1, layout.page_shape)


def scales_of(records: torch.Tensor, layout: KVLayout) -> torch.Tensor | None:
    """The scales in records: a view, see `DeviceMemory.scales`."""
    if not layout.quantised:
        return None
    first = layout.content_bytes // torch.float32.itemsize
    scales = records.view(torch.float32)[:, first : first + 2 * layout.num_kv_heads]
    return scales.unflatten(1, (2, layout.num_kv_heads))


def paged_kv(pages: torch.Tensor, scales: torch.Tensor | None, table: torch.Tensor) -> PagedKV:
    """Keys and values of one layer, as views of both together."""
    if scales is None:
        return PagedKV(pages[:, 0], pages[:, 1], table)
    return PagedKV(pages[:, 0], pages[:, 1], table, scales[:, 0], scales[:, 1])


def per_part(act: Callable[[int, int, int, np.ndarray], None], layer: int) -> tuple[Seen, Seen]:
    """`act(part, layer, first, rows)` for rows of a page file, and of an index file."""

    def pages(first: int, rows: np.ndarray) -> None:
        # With scales behind them the halves are not quite keys and values; what counts is that
        # all bytes are covered, and in the same way wherever a page is looked at.
        halves = rows.reshape(len(rows), 2, -1)
        act(KEYS, layer, first, halves[:, 0])
        act(VALUES, layer, first, halves[:, 1])

    def index(first: int, rows: np.ndarray) -> None:
        act(SUMMARY, layer, first, rows)

    return pages, index
