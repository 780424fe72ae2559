"""All sessions under one cache folder: find, list, name, remove, put aside.

No torch here: `hip sessions list` answers at once.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions import locks
from hipcli.engine.sessions.disk import NEW_SUFFIX, TRASH_SUFFIX, Disk
from hipcli.engine.sessions.manifest import PARTIAL_SUFFIX, Manifest, read_tokens
from hipcli.engine.sessions.names import check_name
from hipcli.engine.sessions.record import SessionRecord, folder_bytes, read_record

if TYPE_CHECKING:
    import numpy as np

CACHEDIR_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Saved contexts of hip.\n"
QUARANTINE = "quarantine"
FOLDER_DIGITS = 32


def require_name(name: str) -> None:
    """Raise SessionError where `check_name` refuses a name."""
    try:
        check_name(name)
    except ValueError as error:
        raise SessionError(str(error), "give another name") from None


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
            # Another process that writes it at this moment takes the half-written file along.
            with contextlib.suppress(FileNotFoundError):
                self.disk.write(tag, CACHEDIR_TAG)
        if not os.access(self.root, os.W_OK):
            raise PermissionError(f"{self.root} cannot be written")
        self.sweep()

    def sweep(self) -> None:
        """Remove what killed processes left: locks nobody holds, folders half made or removed."""
        locks.sweep(self.directory / "locks")
        with contextlib.suppress(OSError):
            (self.root / QUARANTINE).rmdir()
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
                record = read_record(folder)
                if unusable or record.usable:
                    records.append(record)
        return sorted(records, key=lambda record: record.used_s, reverse=True)

    def identities(self) -> Iterator[dict[str, Any]]:
        """The records behind the keys of all complete sessions."""
        for record in self.list():
            if record.complete:
                with contextlib.suppress(SessionError):
                    yield Manifest.read(record.path).identity

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
        if not every and wanted is None:
            raise SessionError("there are no saved sessions", "ask about a document first")
        if wanted is None:
            # Never an older one in place of the latest.
            return self._readable(every[0], unusable)
        # A whole id first: a name that looks like one must not hide another session.
        matches = [record for record in every if wanted in (record.id, record.key)]
        if not matches:
            matches = [record for record in every if record.name and record.name == wanted]
        if not matches:
            matches = [record for record in every if wanted and record.key.startswith(wanted)]
        if not matches:
            nameless = any(record.state == "damaged" for record in every)
            # What a session was called stands in the manifest that is damaged.
            hint = "; one of those that are damaged may be it: ask about its documents again"
            raise SessionError(
                f"no session '{wanted}'", "see: hip sessions list" + (hint if nameless else "")
            )
        if len(matches) > 1:
            ids = ", ".join(record.id for record in matches)
            raise SessionError(
                f"'{wanted}' fits several sessions: {ids}", "give the id, or more digits of it"
            )
        return self._readable(matches[0], unusable)

    def _readable(self, record: SessionRecord, unusable: bool) -> SessionRecord:
        if not unusable and not record.usable:
            try:
                Manifest.read(record.path)
            except SessionError as error:
                error.hint = error.hint or (
                    f"name another one, or remove it: hip sessions rm {record.id}"
                )
                raise
        return record

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
            SessionError: its manifest cannot be read, or the name is no good.
            OSError: it cannot be written.
        """
        require_name(name)
        self._rewrite(record, name=name)

    def remember(self, record: SessionRecord, more: dict[str, Any]) -> None:
        """Add to what the caller keeps beside a session's context.

        Raises:
            SessionError: its manifest cannot be read.
            OSError: it cannot be written.
        """
        extra = Manifest.read(record.path).extra
        self._rewrite(record, extra={**extra, **more})

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

    def put_aside(self) -> Sequence[SessionRecord]:
        """What was put aside, as listed; the oldest first."""
        records = []
        for folder in self.quarantined():
            with contextlib.suppress(OSError):
                records.append(dataclasses.replace(read_record(folder), state="quarantined"))
        return records

    def quarantined(self) -> Iterator[Path]:
        """Folders that were put aside, the oldest first."""
        with contextlib.suppress(OSError):
            yield from sorted((self.root / QUARANTINE).iterdir(), key=lambda p: p.stat().st_mtime)
