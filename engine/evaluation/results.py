"""The file of results: one JSON object a line, appended as cells are finished."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hipcli.engine.errors import HipError
from hipcli.engine.evaluation.plan import key_of_row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of finished cells; a line that was cut off, or is none of ours, is passed over.

    Raises:
        HipError: the file cannot be read.
    """
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HipError(f"cannot read {path}: {error.strerror}") from error
    rows = []
    # Answers may hold signs that Python takes for ends of lines as well.
    for line in text.split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and key_of_row(row):
            rows.append(row)
    return rows


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add the rows of a cell in one write, and wait until they are on the disk.

    Raises:
        HipError: the file cannot be written.
    """
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    try:
        with path.open("ab+", buffering=0) as file:
            if file.tell() and not _ends_line(file.fileno(), file.tell()):
                data = b"\n" + data
            file.write(data)
            os.fsync(file.fileno())
    except OSError as error:
        raise HipError(f"cannot write {path}: {error.strerror}", "check --out") from error


def _ends_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
