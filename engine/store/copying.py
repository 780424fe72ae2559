"""Rows on their way between tensors on a device and a session's files, through pinned buffers."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from hipcli.engine.store.layout import KVLayout

# Pages that travel at once: 4 MiB of a layer of an 8B model.
STAGED_PAGES = 16

# Told of rows of a file on their way: the first one's number, and uint8 [n, bytes of a row].
Seen = Callable[[int, np.ndarray], None]

# A piece on its way to a file: turn of its buffer, the rows of the file, bytes.
_Waiting = tuple[int, Sequence[int], memoryview]


def _neighbours(pages: Sequence[int], raw: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Rows of a file in runs: the first row, how many rows, and their bytes in `raw`."""
    row_bytes = len(raw) // len(pages)
    first = 0
    for place in range(1, len(pages) + 1):
        if place == len(pages) or pages[place] != pages[place - 1] + 1:
            yield pages[first], place - first, raw[first * row_bytes : place * row_bytes]
            first = place


def _rows_of(raw: memoryview, count: int) -> np.ndarray:
    """uint8 [count, bytes of a row]."""
    return np.frombuffer(raw, np.uint8).reshape(count, -1)


def read_whole(fd: int, raw: memoryview, offset: int, name: str) -> None:
    """Fill all of `raw` from the file. Raises OSError, also where the file ends too early."""
    done = 0
    while done < len(raw):
        count = os.preadv(fd, [raw[done:]], offset + done)
        if count == 0:
            raise OSError(f"{name} is shorter than it was")
        done += count


def write_whole(fd: int, raw: memoryview, offset: int) -> None:
    """Write all of `raw` to the file. Raises OSError."""
    done = 0
    while done < len(raw):
        done += os.pwrite(fd, raw[done:], offset + done)


def staging(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Main memory uint8 that a device copies from and to: pinned, or where the system refuses that
    ordinary, which copies of PyTorch take too, at the price of a wait."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True)
    return torch.empty(shape, dtype=torch.uint8)


class Copier:
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
        self._buffers = [staging((size,), device) for _ in range(2)]
        self._turn = 0
        self._ready = ready
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

    def _pieces(
        self, rows: torch.Tensor, pages: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, Sequence[int]]]:
        row_bytes = rows[:1].numel() * rows.element_size()
        step = max(1, self._buffers[0].numel() // max(row_bytes, 1))
        for start in range(0, len(pages), step):
            yield rows[start : start + step], pages[start : start + step]

    def read(self, path: Path, rows: torch.Tensor, pages: Sequence[int], seen: Seen) -> None:
        """Rows of the file become those of a tensor; asynchronously.

        Args:
            path: the file.
            rows: [n, ...].
            pages: which rows of the file, n of them, ascending.
            seen: told of each run of neighbours.
        """
        with open(path, "rb", buffering=0) as file:
            for piece, places in self._pieces(rows, pages):
                if self._events:
                    self._events[self._turn ^ 1].synchronize()
                tensor, whole = self._staged(piece)
                for first, count, raw in _neighbours(places, whole):
                    read_whole(file.fileno(), raw, first * (len(raw) // count), path.name)
                    seen(first, _rows_of(raw, count))
                if self._stream is None:
                    piece.copy_(tensor)
                    continue
                with torch.cuda.stream(self._stream):
                    piece.copy_(tensor, non_blocking=True)
                    self._events[self._turn].record()

    def write(self, path: Path, rows: torch.Tensor, pages: Sequence[int], seen: Seen) -> None:
        """The rows of a tensor become rows of the file, named as in `read`.

        While one piece is written to the file the next one comes from the device.
        """
        fd = os.open(path, os.O_WRONLY)
        try:
            waiting: _Waiting | None = None
            for piece, places in self._pieces(rows, pages):
                tensor, raw = self._staged(piece)
                if self._stream is None:
                    tensor.copy_(piece)
                else:
                    with torch.cuda.stream(self._stream):
                        tensor.copy_(piece, non_blocking=True)
                        self._events[self._turn].record()
                self._put(fd, waiting, seen)
                waiting = (self._turn, places, raw)
            self._put(fd, waiting, seen)
        finally:
            os.close(fd)

    def _put(self, fd: int, waiting: _Waiting | None, seen: Seen) -> None:
        if waiting is None:
            return
        turn, places, whole = waiting
        if self._events:
            self._events[turn].synchronize()
        for first, count, raw in _neighbours(places, whole):
            seen(first, _rows_of(raw, count))
            write_whole(fd, raw, first * (len(raw) // count))

    def read_here(self, path: Path, rows: np.ndarray, first: int, seen: Seen) -> None:
        """Rows of the file from `first` on become uint8 [n, bytes of a row] in main memory."""
        with open(path, "rb", buffering=0) as file:
            read_whole(file.fileno(), rows.data.cast("B"), first * rows.shape[1], path.name)
        seen(first, rows)

    def write_here(self, path: Path, rows: np.ndarray, first: int, seen: Seen) -> None:
        """uint8 [n, bytes of a row] in main memory become rows of the file from `first` on."""
        seen(first, rows)
        fd = os.open(path, os.O_WRONLY)
        try:
            write_whole(fd, rows.data.cast("B"), first * rows.shape[1])
        finally:
            os.close(fd)

    def wait(self) -> None:
        """Until what was under way on the device when this began is done."""
        if self._ready is not None:
            self._ready.synchronize()

    def finish(self) -> None:
        """What was read is visible to the device's current stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
            self._stream.synchronize()
