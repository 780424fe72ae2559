"""The child process that reads a foreign file, seen from the parent: its events, or its end."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from hipcli.documents.options import PdfLimits

# Starting Python takes a tenth of a second; a busy machine gets this many seconds.
_START_S = 60.0
# How often is looked whether another thread wants a child ended.
_STOP_S = 0.25
_ENDED = object()


class WorkerDied(Exception):
    """The child ended, or was ended, before it was done. The message says why, for the user."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a child is asked for.

    Args:
        engine: "pdfium" (with pypdf's help), "pypdf" alone, or a kind that `module` reads.
        first_page, end_page: which pages, 0-based and without the last one; for PDFs.
        deadline: `time.monotonic()` at which reading must have ended.
        module: of `hipcli.documents`, what the child runs.
    """

    data: bytes
    password: str | None
    engine: str
    first_page: int
    limits: PdfLimits
    deadline: float
    module: str = "pdf_worker"
    end_page: int = 0


def worker_events(
    request: WorkerRequest, stop: threading.Event | None = None
) -> Iterator[dict[str, Any]]:
    """The events of a module such as `pdf_worker`, as they come; the child never outlives this.

    Args:
        stop: once set, by another thread, the child is ended.

    Raises:
        WorkerDied: it crashed, ran out of memory or time, sent too much, or was stopped.
    """
    flags = ["-P"] if sys.version_info >= (3, 11) else []
    process = subprocess.Popen(
        [sys.executable, *flags, "-m", f"hipcli.documents.{request.module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # `-m` puts the current folder first on the import path: not one that the user is reading.
        cwd=os.path.abspath(os.sep),
    )
    assert process.stdin is not None and process.stdout is not None
    lines: queue.Queue[Any] = queue.Queue(maxsize=64)
    ended = threading.Event()
    threads = [
        threading.Thread(target=_feed, args=(process.stdin, request), daemon=True),
        threading.Thread(
            target=_collect, args=(process.stdout, lines, request.limits, ended), daemon=True
        ),
    ]
    for thread in threads:
        thread.start()
    try:
        yield from _events(process, lines, request, stop)
    finally:
        ended.set()
        process.kill()
        process.wait()
        for thread in threads:
            thread.join(timeout=5.0)


def _events(
    process: "subprocess.Popen[bytes]",
    lines: "queue.Queue[Any]",
    request: WorkerRequest,
    stop: threading.Event | None,
) -> Iterator[dict[str, Any]]:
    patience_s = _START_S
    while True:
        left_s = request.deadline - time.monotonic()
        line = _next_line(lines, min(patience_s, left_s), stop)
        if line is None:
            raise WorkerDied(_too_slow(patience_s, left_s, request.limits))
        if isinstance(line, WorkerDied):
            raise line
        if line is _ENDED:
            raise WorkerDied(_how_it_ended(process))
        event = json.loads(line)
        yield event
        if event["event"] in ("end", "error"):
            return
        patience_s = request.limits.page_s


def _next_line(lines: "queue.Queue[Any]", patience_s: float, stop: threading.Event | None) -> Any:
    """The next line of the child; None when `patience_s` went by without one.

    Raises:
        WorkerDied: `stop` was set.
    """
    until = time.monotonic() + patience_s
    while True:
        left_s = max(0.0, until - time.monotonic())
        try:
            return lines.get(timeout=left_s if stop is None else min(left_s, _STOP_S))
        except queue.Empty:
            if stop is not None and stop.is_set():
                raise WorkerDied("stopped") from None
            if left_s <= _STOP_S or stop is None:
                return None


def _feed(stdin: BinaryIO, request: WorkerRequest) -> None:
    """Send the request; a child that died does not read it, and its end is noticed elsewhere."""
    header = {
        "num_bytes": len(request.data),
        "password": request.password,
        "first_page": request.first_page,
        "end_page": request.end_page,
        "engine": request.engine,
        "memory_bytes": request.limits.memory_bytes + 3 * len(request.data),
        "cpu_s": max(1.0, request.deadline - time.monotonic()),
    }
    try:
        with stdin:
            stdin.write(json.dumps(header).encode("ascii") + b"\n")
            stdin.write(request.data)
    except OSError:
        return


def _collect(
    stdout: BinaryIO, lines: "queue.Queue[Any]", limits: PdfLimits, stop: threading.Event
) -> None:
    """Put the child's lines into the queue, then what ended them."""
    left_bytes = limits.text_bytes
    ending: Any = _ENDED
    with stdout:
        while line := stdout.readline(limits.text_bytes // 2 + 1):
            left_bytes -= len(line)
            if left_bytes < 0 or not line.endswith(b"\n"):
                # A line without an end is also what a child leaves that died in the middle of it.
                if left_bytes < 0 or len(line) > limits.text_bytes // 2:
                    ending = WorkerDied("the text in it is beyond all measure")
                break
            if not _put(lines, line, stop):
                return
    _put(lines, ending, stop)


def _put(lines: "queue.Queue[Any]", item: Any, stop: threading.Event) -> bool:
    """Wait for room in the queue; False when nobody will read it any more."""
    while not stop.is_set():
        try:
            lines.put(item, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False


def _too_slow(patience_s: float, left_s: float, limits: PdfLimits) -> str:
    if left_s <= patience_s:
        return f"reading took longer than {limits.total_s:g} s"
    return f"took longer than {patience_s:g} s"


def _how_it_ended(process: "subprocess.Popen[bytes]") -> str:
    code = process.wait()
    if code >= 0:
        return f"its reader ended with exit code {code}"
    if -code == getattr(signal, "SIGXCPU", None):
        return "took too much processor time"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its reader crashed ({name})"
