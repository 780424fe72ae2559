"""Pages of a context that is saved nowhere and larger than memory: a temporary file holds them."""

import os
from collections.abc import Generator

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Event, Notice
from hipcli.engine.sessions.disk import Disk
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
        fd = disk.unnamed(limit.folder, num_bytes)
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
    what = f"{kv} do not fit memory; a temporary file in {limit.folder} holds them until the end"
    yield Notice("kv_on_disk", what)
