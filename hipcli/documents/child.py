"""What every child process that reads a foreign file does around the reading itself.

Standard input: one JSON line (num_bytes, password, first_page, end_page, engine, memory_bytes,
cpu_s), then the bytes of the file. Standard output: events as JSON lines, the first of them
"ready", the last "end" or "error". A hostile file so costs one error, not the program.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from hipcli.documents.refusal import Refusal


def serve(read: Callable[[bytes, dict[str, Any], BinaryIO], None]) -> None:
    """Serve one request and return: `read` gets the bytes, the request, and where events go."""
    out = _claim_stdout()
    emit(out, event="ready")
    request = json.loads(sys.stdin.buffer.readline())
    _limit(request)
    data = sys.stdin.buffer.read(request["num_bytes"])
    logging.disable(logging.CRITICAL)
    try:
        read(data, request, out)
    except MemoryError:
        emit(out, event="error", code="memory", message="out of memory")
    except Refusal as refusal:
        emit(out, event="error", code=refusal.code, message=refusal.reason)
    # Whatever a parser raises on a broken file is an answer to the parent, not a crash.
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:500]
        emit(out, event="error", code="damaged", message=message)


def emit(out: BinaryIO, **event: Any) -> None:
    """Send one event, at once."""
    out.write(json.dumps(event).encode("ascii") + b"\n")
    out.flush()


def _claim_stdout() -> BinaryIO:
    """The pipe to the parent; what C code prints goes to stderr, so it can't corrupt the lines."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _limit(request: dict[str, Any]) -> None:
    """Bound this process's memory and time, and forbid it to write files or dump core."""
    try:
        import resource
    except ImportError:
        # Windows has no such limits; the parent's clock still holds.
        return
    cpu_s = math.ceil(request["cpu_s"])
    for limit, value in (
        ("RLIMIT_AS", request["memory_bytes"]),
        ("RLIMIT_CPU", cpu_s),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
    ):
        kind = getattr(resource, limit, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, hard))
        # macOS knows RLIMIT_AS and refuses to set it.
        except (ValueError, OSError):
            continue
