"""Digests of weights that were read before, so that a start does not read them again.

A file counts as unchanged while its device, inode, size and times are what they were. Whoever does
not trust that asks for `--verify-weights`, which reads all of every file each time.
"""

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from hipcli.engine.models.folders import weight_files
from hipcli.engine.models.weights import digest
from hipcli.engine.sessions.disk import Disk

CACHE_FILE = ".digests.json"
MOST_ENTRIES = 64
# A file that was changed this lately may change again without its times telling.
SETTLED_NS = 2_000_000_000


def weights_digest(folder: Path, models_dir: Path | None, *, verify: bool = False) -> str:
    """The digest of a folder's weights: sampled (see `weights.py`), or of all bytes.

    Args:
        folder: holds the weights.
        models_dir: where sampled digests are remembered; None remembers none.
        verify: read all bytes, whatever was remembered.

    Raises:
        ModelError: as `digest`.
    """
    if verify:
        return digest(folder, full=True)
    state = _state(folder)
    if models_dir is None or state is None:
        return digest(folder)
    path = models_dir / CACHE_FILE
    known = _read(path)
    if state not in known:
        known[state] = digest(folder)
        _remember(path, known)
    return known[state]


def _state(folder: Path) -> str | None:
    """Names what the files are as far as their metadata tell; None if that is not settled."""
    rows = []
    for file in weight_files(folder):
        found = os.stat(file)
        latest = max(found.st_mtime_ns, found.st_ctime_ns)
        if latest > time.time_ns() - SETTLED_NS:
            return None
        rows.append([found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, latest])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _read(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = json.loads(path.read_bytes())
        if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
            return data
    return {}


def _remember(path: Path, known: dict[str, str]) -> None:
    """Keep the latest entries; where nothing can be written, nothing is remembered."""
    latest = dict(list(known.items())[-MOST_ENTRIES:])
    with contextlib.suppress(OSError):
        Disk().write(path, json.dumps(latest).encode("ascii"), sync=False)
