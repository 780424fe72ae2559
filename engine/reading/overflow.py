"""Pages of a context that is saved nowhere and larger than memory: a temporary file holds them."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Event, Notice
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.store.limits import temporary_folder
from hipcli.engine.store.pages import KVStore


def overflow(store: KVStore, disk: Disk) -> Generator[Event, None, None]:
    """Put a file under the pages of an empty store if memory does not hold them.

    The file has no name: the disk is free again when the store goes, however the process ends.

    Raises:
        DoesNotFitError: the disk does not hold them either.
    """
    num_bytes, limit = store.overflow_bytes, store.limit
    if not num_bytes or limit is None:
        return
    kv = f"keys and values ({num_bytes / 2**20:,.1f} MiB)"
    try:
        fd, folder = _unnamed(disk, limit.folder, num_bytes)
    except OSError as error:
        room = max(limit.room_bytes, 0) / 2**20
        raise DoesNotFitError(
            f"{kv} fit neither memory ({room:,.1f} MiB left) nor the disk of {limit.folder}:"
            f" {error.strerror or error}",
            "free disk space, raise --host-memory, or cut the text with --context-limit N"
            " --fit middle",
        ) from None
    try:
        store.overflow_to(fd)
    finally:
        os.close(fd)
    what = f"{kv} do not fit memory; a temporary file in {folder} holds them until the end"
    yield Notice("kv_on_disk", what)


def _unnamed(disk: Disk, folder: Path, num_bytes: int) -> tuple[int, Path]:
    """The file, and the folder it is in: where the first takes none, the system's own.

    Raises:
        OSError: neither does; that of the first.
    """
    try:
        return disk.unnamed(folder, num_bytes), folder
    except OSError:
        other = temporary_folder()
        with contextlib.suppress(OSError):
            return disk.unnamed(other, num_bytes), other
        raise
