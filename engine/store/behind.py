"""What lies behind the slots of a device: records of whole pages in main memory and on the disk.

Copies off the device run beside what it computes, on a stream of their own. What main memory has no
room for threads write to the disk, and read from there when it is wanted.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.store.checks import PageChecks
from hipcli.engine.store.copying import staging
from hipcli.engine.store.disk_pages import DiskPages
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.memory import per_part
from hipcli.engine.store.slabs import Slabs
from hipcli.engine.store.tiers import TierPlan

# Copies to the disk under way at once: each has a buffer of its own.
PENDING_WRITES = 64


class Behind:
    """Slabs, and the disk for those that are absent.

    Args:
        layout: of the pages.
        capacity: pages a layer.
        plan: what lies where.
        device: with the slots.
        threads: read and write the disk.

    Attributes:
        slabs: in main memory, or on the device beside the slots.
        side: what is sent off the device runs there; None on a CPU.
        checks: checksums of pages on the disk, once there are files of a session.
        bytes_out: sent so far.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity: int,
        plan: TierPlan,
        device: torch.device,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._layout, self._device, self._threads = layout, device, threads
        self.slabs = Slabs(
            layout, capacity, plan.slab_pages, plan.absent, device, plan.device_slabs
        )
        first, last = (slab * plan.slab_pages for slab in plan.absent)
        self._on_disk = range(first, min(last, capacity))
        self._disk = DiskPages(layout.page_bytes)
        self._writes: list[deque[Future[None]]] = [deque() for _ in range(layout.num_layers)]
        self.side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.checks: PageChecks | None = None
        self.bytes_out = 0

    def attach(self, files: Iterable[Path], checks: PageChecks, *, shared: bool) -> None:
        """Take the page files of a session, one a layer."""
        self.checks = checks
        if self._on_disk:
            self._disk.open_session(files, writable=shared)

    @property
    def overflow_bytes(self) -> int:
        """Size of a file for the pages that memory has no room for."""
        return len(self._on_disk) * self._layout.num_layers * self._layout.page_bytes

    def overflow_to(self, fd: int) -> None:
        """Put an open file of `overflow_bytes` under those pages."""
        self._disk.use(fd, self._on_disk.start, len(self._on_disk), self._layout.num_layers)

    def send(self, layer: int, first: int, rows: torch.Tensor) -> None:
        """Copy records of pages of one slab, from `first` on, off the device."""
        self.bytes_out += rows.nbytes
        if self.slabs.holds(first):
            self._copy(rows, self.slabs.rows(layer, first, first + len(rows)))
            return
        buffer = staging(tuple(rows.shape), self._device)
        self._copy(rows, buffer)
        writes, done = self._writes[layer], self._sent()
        writes.append(self._threads.submit(self._write, layer, first, buffer, done))
        if len(writes) > PENDING_WRITES // len(self._writes):
            _settle(writes.popleft())

    def put(self, layer: int, first: int, rows: torch.Tensor) -> None:
        """Records on the CPU of pages of one slab, from `first` on, to where they stay."""
        if self.slabs.holds(first):
            self.slabs.rows(layer, first, first + len(rows)).copy_(rows)
        else:
            self._write(layer, first, rows, None)

    def wait(self) -> None:
        """What the device is told from here on finds all that was sent."""
        if self.side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.side)

    def finish(self, layer: int) -> None:
        """Wait until the disk has all that was sent of a layer.

        Raises:
            DoesNotFitError: the disk did not take it.
        """
        writes = self._writes[layer]
        while writes:
            _settle(writes.popleft())

    def records(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Records of pages that were sent, uint8 [n, page_bytes] on the device.

        Args:
            layer: which layer.
            pages: integers [n] on the CPU, ascending.
        """
        if self.side is not None:
            self.side.synchronize()
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
            self._read(layer, away, rows.numpy())
        return rows.to(self._device)

    def _copy(self, rows: torch.Tensor, target: torch.Tensor) -> None:
        """Copy records off the device beside what it computes."""
        if self.side is None:
            target.copy_(rows)
            return
        self.side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self.side):
            target.copy_(rows, non_blocking=True)
        rows.record_stream(self.side)

    def _sent(self) -> "torch.cuda.Event | None":
        """An event after everything that was sent off the device so far."""
        if self.side is None:
            return None
        event = torch.cuda.Event()
        event.record(self.side)
        return event

    def after_all(self) -> "torch.cuda.Event | None":
        """An event after everything that the device was told and that was sent so far."""
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream(self._device))
        return self._sent()

    def _write(
        self, layer: int, first: int, rows: torch.Tensor, done: "torch.cuda.Event | None"
    ) -> None:
        if done is not None:
            done.synchronize()
        self._disk.write(layer, first, rows.numpy())
        if self.checks is not None:
            per_part(self.checks.record, layer)[0](first, rows.numpy())

    def _read(self, layer: int, away: list[tuple[int, int]], rows: np.ndarray) -> None:
        """Read pages (place in `rows`, page) by several threads."""
        self.finish(layer)
        jobs = [
            self._threads.submit(self._disk.read, layer, page, rows[place : place + 1])
            for place, page in away
        ]
        for job in jobs:
            job.result()
        if self.checks is not None:
            compare, _ = per_part(self.checks.compare_rows, layer)
            for place, page in away:
                compare(page, rows[place : place + 1])


def _settle(write: "Future[None]") -> None:
    try:
        write.result()
    except OSError as error:
        raise DoesNotFitError(
            f"keys and values cannot be written to the disk: {error.strerror or error}",
            "free disk space, raise --host-memory, or ask about less text",
        ) from None
