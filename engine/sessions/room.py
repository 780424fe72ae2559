"""Room for a session that is about to be saved: least recently used ones make way."""

import contextlib
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.locks import unused
from hipcli.engine.sessions.manifest import Manifest, NewerSessionError
from hipcli.engine.sessions.record import folder_bytes
from hipcli.engine.sessions.store import FOLDER_DIGITS, SessionStore

MAX_BYTES = 50 << 30
Made = TypeVar("Made")


class NoRoomError(OSError):
    """A session is larger than all sessions together may be."""


def surplus(store: SessionStore, limit_bytes: int | None) -> list[tuple[Path, int]]:
    """Folders that `hip sessions prune` removes, each with its disk space.

    Args:
        store: the sessions.
        limit_bytes: what sessions may take together; None removes only what nobody can read.
    """
    found = [(path, folder_bytes(path)) for path in store.quarantined() if not _is_newer(path)]
    records = store.list(unusable=True)
    found += [(r.path, r.num_bytes) for r in records if r.state == "damaged"]
    if limit_bytes is None:
        return found
    gone = {path for path, _ in found}
    kept = [record.path for record in records if record.path not in gone]
    for record in reversed([r for r in records if r.usable]):
        # Counted anew: files that a fork still uses give nothing back.
        if folder_bytes(*kept) <= limit_bytes:
            break
        with unused(record.path) as nobody:
            if nobody and not store.builder(record.key):
                found.append((record.path, record.num_bytes))
                kept.remove(record.path)
    return found


def limit_bytes(store: SessionStore, max_bytes: int) -> int:
    """What all sessions may take: `max_bytes`, or where that is 0 the smaller of 50 GiB and a
    quarter of the space that is free or taken by sessions."""
    if max_bytes:
        return max_bytes
    free = shutil.disk_usage(store.root).free
    return min(MAX_BYTES, (free + folder_bytes(store.root)) // 4)


def make_room(
    store: SessionStore, num_bytes: int, max_bytes: int, keep: str, brief_bytes: int = 0
) -> None:
    """Remove what was put aside, then least recently used sessions, until the new one fits.

    Sessions that another process builds or reads stay, as do those of a newer version of hip.

    Args:
        store: the sessions.
        num_bytes: of the session to come.
        max_bytes: limit of all sessions, see `limit_bytes`.
        keep: key of a session that stays.
        brief_bytes: what the new one takes beyond that until it is read; the disk must have it,
            the limit does not count it.

    Raises:
        NoRoomError: it would not fit if it were alone.
    """
    used = folder_bytes(store.root)
    free = shutil.disk_usage(store.root).free
    max_bytes = limit_bytes(store, max_bytes)
    if num_bytes > max_bytes:
        raise NoRoomError(
            errno.EFBIG, f"it takes {num_bytes:,} bytes, sessions may take {max_bytes:,}"
        )
    needed = num_bytes + brief_bytes
    if used + num_bytes <= max_bytes and needed <= free:
        return
    for folder in list(store.quarantined()):
        with contextlib.suppress(OSError):
            if not _is_newer(folder):
                size = folder_bytes(folder)
                store.disk.remove(folder)
                used, free = used - size, free + size
    records = store.list(unusable=True)
    # What nobody can use goes first.
    for record in sorted(records, key=lambda r: (r.state != "damaged", r.used_s)):
        if used + num_bytes <= max_bytes and needed <= free:
            return
        kept = keep and record.key[:FOLDER_DIGITS] == keep[:FOLDER_DIGITS]
        if kept or record.state == "newer":
            continue
        with contextlib.suppress(SessionError, OSError), unused(record.path) as nobody:
            if nobody:
                store.remove(record)
                # Files that a fork still uses give nothing back.
                after = folder_bytes(store.root)
                used, free = after, free + used - after


def _is_newer(folder: Path) -> bool:
    try:
        Manifest.read(folder)
    except NewerSessionError:
        return True
    except SessionError:
        return False
    return False


def with_room(store: SessionStore, num_bytes: int, keep: str, make: Callable[[], Made]) -> Made:
    """`make()`, tried once more after room was made if the disk is full.

    Raises:
        OSError: of `make`.
    """
    try:
        return make()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    # There is less room than the system said, so sessions may take no more than they do.
    make_room(store, num_bytes, max(folder_bytes(store.root), num_bytes), keep)
    return make()
