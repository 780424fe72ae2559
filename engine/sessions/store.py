"""All sessions under one cache folder: find, list, name, remove, put aside.

No torch here: `hip sessions list` answers at once.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions import locks
from hipcli.engine.sessions.disk import NEW_SUFFIX, TRASH_SUFFIX, Disk
from hipcli.engine.sessions.manifest import (
    PARTIAL_SUFFIX,
    Manifest,
    NewerSessionError,
    read_tokens,
)

if TYPE_CHECKING:
    import numpy as np

CACHEDIR_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Saved contexts of hip.\n"
QUARANTINE = "quarantine"
FOLDER_DIGITS = 32


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as listed. Times are UTC seconds since the epoch; `num_bytes` is disk space.

    `state` is complete, partial, newer (of a newer format) or damaged (its manifest); of the last
    two only the folder and its size are known.
    """

    id: str
    key: str
    name: str
    created: str
    used_s: float
    state: str
    context_tokens: int
    num_bytes: int
    model: str
    method: str
    branch: str
    inputs: tuple[dict[str, str], ...]
    extra: dict[str, Any]
    kept_ratio: float
    path: Path

    @property
    def complete(self) -> bool:
        """True if the whole context is there."""
        return self.state == "complete"

    @property
    def usable(self) -> bool:
        """True if a question can be asked."""
        return self.state in ("complete", "partial")


def folder_bytes(folder: Path) -> int:
    """Disk space of the files under `folder`, as `du` counts it: linked files once."""
    seen = set()
    total = 0
    for root, folders, names in os.walk(folder):
        for name in [*names, *folders]:
            with contextlib.suppress(OSError):
                entry = os.lstat(os.path.join(root, name))
                if entry.st_nlink > 1 and name in names:
                    if (entry.st_dev, entry.st_ino) in seen:
                        continue
                    seen.add((entry.st_dev, entry.st_ino))
                total += entry.st_blocks * 512
    return total


class SessionStore:
    """The sessions under `directory`/sessions.

    Args:
        directory: root of the cache; made when something is saved, never by reading.
        disk: makes all changes.
    """

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self.root = directory / "sessions"
        self.disk = disk or Disk()

    def folder(self, key: str, *, partial: bool) -> Path:
        """Where the session with identity `key` lies or would lie."""
        return self.root / (key[:FOLDER_DIGITS] + (PARTIAL_SUFFIX if partial else ""))

    def prepare(self) -> None:
        """Make the folders, private to the user, tagged as a cache for backup programs.

        What killed processes left behind is removed.

        Raises:
            OSError: they cannot be made or written.
        """
        self.disk.make_folder(self.root)
        self.disk.make_folder(self.directory / "locks")
        tag = self.directory / "CACHEDIR.TAG"
        if not tag.exists():
            self.disk.write(tag, CACHEDIR_TAG)
        if not os.access(self.root, os.W_OK):
            raise PermissionError(f"{self.root} cannot be written")
        self.sweep()

    def sweep(self) -> None:
        """Remove what killed processes left: locks nobody holds, folders half made or removed."""
        locks.sweep(self.directory / "locks")
        for folder in self._folders((TRASH_SUFFIX, NEW_SUFFIX)):
            if folder.name.endswith(NEW_SUFFIX):
                key = folder.name.removesuffix(NEW_SUFFIX)
                with contextlib.suppress(OSError), self.try_lock(key) as ours:
                    if ours:
                        self.disk.remove(folder)
            else:
                with contextlib.suppress(OSError):
                    self.disk.remove(folder)

    def _lock_file(self, key: str) -> Path:
        return self.directory / "locks" / f"{key[:FOLDER_DIGITS]}.lock"

    def lock(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Hold the right to build the session `key`; waits for whoever holds it."""
        return locks.held(self._lock_file(key), wait=True)

    def try_lock(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """The same without waiting; the value says whether the right is ours."""
        return locks.held(self._lock_file(key), wait=False)

    def builder(self, key: str) -> str:
        """Who builds the session `key` right now, in words; empty if nobody does."""
        return locks.holder(self._lock_file(key))

    def list(self, *, unusable: bool = False) -> list[SessionRecord]:
        """All sessions, most recently used first; with `unusable` those too that none can read."""
        records = []
        for folder in self._folders():
            with contextlib.suppress(OSError):
                record = self._record(folder)
                if unusable or record.usable:
                    records.append(record)
        return sorted(records, key=lambda record: record.used_s, reverse=True)

    def _folders(self, suffixes: tuple[str, ...] = ()) -> tuple[Path, ...]:
        """Folders of sessions, or those that end in one of `suffixes`."""
        try:
            entries = list(os.scandir(self.root))
        except OSError:
            return ()
        others = (TRASH_SUFFIX, NEW_SUFFIX)
        return tuple(
            Path(entry.path)
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
            and entry.name != QUARANTINE
            and (entry.name.endswith(suffixes) if suffixes else not entry.name.endswith(others))
        )

    def _record(self, folder: Path) -> SessionRecord:
        used_s, num_bytes = folder.stat().st_mtime, folder_bytes(folder)
        state = "partial" if folder.name.endswith(PARTIAL_SUFFIX) else "complete"
        try:
            manifest = Manifest.read(folder)
        except SessionError as error:
            state = "newer" if isinstance(error, NewerSessionError) else "damaged"
            key = folder.name.removesuffix(PARTIAL_SUFFIX)
            return SessionRecord(
                key[:12], key, "", "", used_s, state, 0, num_bytes, "", "", "", (), {}, 1.0, folder
            )
        identity = manifest.identity
        return SessionRecord(
            id=manifest.key[:12],
            key=manifest.key,
            name=manifest.name,
            created=manifest.created,
            used_s=used_s,
            state=state,
            context_tokens=manifest.context_tokens,
            num_bytes=num_bytes,
            model=str(identity.get("model_name", "")),
            method=str(identity.get("method", {}).get("name", "")),
            branch=str(identity.get("branch", "")),
            inputs=tuple(manifest.inputs),
            extra=manifest.extra,
            kept_ratio=1.0,
            path=folder,
        )

    def total_bytes(self) -> int:
        """Disk space of all that is saved, as `du` counts it."""
        return folder_bytes(self.root)

    def find(self, wanted: str | None = None, *, unusable: bool = False) -> SessionRecord:
        """The session with this name, id, or unique start of an id; None takes the latest.

        Args:
            wanted: what the user typed.
            unusable: True to find also what nobody can read, to remove or show it.

        Raises:
            SessionError: none, more than one, or one that cannot be read.
        """
        every = self.list(unusable=True)
        records = every if unusable else [record for record in every if record.usable]
        if wanted is None:
            if not records:
                raise SessionError("there are no saved sessions", "ask about a document first")
            return records[0]
        matches = [record for record in every if record.name and record.name == wanted]
        if not matches:
            matches = [record for record in every if wanted and record.key.startswith(wanted)]
        if not matches:
            raise SessionError(f"no session '{wanted}'", "see: hip sessions list")
        if len(matches) > 1:
            ids = ", ".join(record.id for record in matches)
            raise SessionError(
                f"'{wanted}' fits several sessions: {ids}", "give the id, or more digits of it"
            )
        if matches[0] not in records:
            # Says why.
            Manifest.read(matches[0].path)
        return matches[0]

    def context(self, record: SessionRecord) -> "np.ndarray":
        """Token ids of a session's context, int32 [N], so that no document is read again.

        Raises:
            DamagedSessionError: they are missing or damaged.
        """
        return read_tokens(record.path, Manifest.read(record.path).tokens_sha256)

    def remove(self, record: SessionRecord) -> None:
        """Delete a session. A process that reads it goes on undisturbed.

        Raises:
            SessionError: another process is building it.
            OSError: it cannot be deleted.
        """
        builder = self.builder(record.key)
        if builder:
            raise SessionError(f"session {record.id} is being built by {builder}")
        self.disk.remove(record.path)

    def touch(self, folder: Path) -> None:
        """Mark as used now, later than every other; a read-only cache stays as it is.

        Clocks go backwards at times; the order of use must not.
        """
        latest = 0
        for other in self._folders():
            with contextlib.suppress(OSError):
                latest = max(latest, other.stat().st_mtime_ns if other != folder else 0)
        with contextlib.suppress(OSError):
            self.disk.touch(folder, max(time.time_ns(), latest + 1_000))

    def rename(self, record: SessionRecord, name: str) -> None:
        """Give a session another name, or none.

        Raises:
            SessionError: its manifest cannot be read.
            OSError: it cannot be written.
        """
        self._rewrite(record, name=name)

    def remember(self, record: SessionRecord, key: str, value: Any) -> None:
        """Put something in what the caller keeps beside a session's context.

        Raises:
            SessionError: its manifest cannot be read.
            OSError: it cannot be written.
        """
        extra = Manifest.read(record.path).extra
        self._rewrite(record, extra={**extra, key: value})

    def _rewrite(self, record: SessionRecord, **changes: Any) -> None:
        manifest = dataclasses.replace(Manifest.read(record.path), **changes)
        used = record.path.stat().st_mtime_ns
        manifest.write(record.path, self.disk)
        # Losing a name is no use of a session; asking marks it by itself.
        self.disk.touch(record.path, used)

    def claim_name(self, name: str, key: str) -> tuple[str, ...]:
        """Take `name` from all other sessions: no two are to have the same.

        Returns:
            Ids of the sessions that had it.
        """
        lost = []
        for record in self.list():
            if record.name == name and record.key != key:
                lost.append(record.id)
                with contextlib.suppress(OSError, SessionError):
                    self.rename(record, "")
        return tuple(lost)

    def quarantine(self, folder: Path) -> bool:
        """Put a damaged session aside, so that a new one can take its place.

        Returns:
            False if it cannot be moved: a read-only cache.
        """
        if not os.path.lexists(folder):
            return True
        target = self.root / QUARANTINE
        with contextlib.suppress(OSError):
            self.disk.make_folder(target)
            self.disk.rename(folder, target / f"{folder.name}.{time.time_ns()}")
            return True
        with contextlib.suppress(OSError):
            self.disk.remove(folder)
        return not os.path.lexists(folder)

    def verify(self, record: SessionRecord) -> None:
        """Compare all that a session holds with its checksums.

        Raises:
            NewerSessionError: it is of a newer format.
            DamagedSessionError: something is not what was written.
        """
        from hipcli.engine.sessions.verify import verify_folder

        verify_folder(record.path)

    def quarantined(self) -> Iterator[Path]:
        """Folders that were put aside, the oldest first."""
        with contextlib.suppress(OSError):
            yield from sorted((self.root / QUARANTINE).iterdir(), key=lambda p: p.stat().st_mtime)
