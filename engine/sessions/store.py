"""All sessions under one cache folder: find, list, remove, open or create.

No torch here: `hip sessions list` answers at once.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.manifest import Manifest, read_tokens

if TYPE_CHECKING:
    import numpy as np

CACHEDIR_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Saved contexts of hip.\n"
PARTIAL_SUFFIX = ".partial"
QUARANTINE = "quarantine"
FOLDER_DIGITS = 32
MAX_BYTES = 50 << 30


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as listed. Times are UTC seconds since the epoch; `num_bytes` is disk space."""

    id: str
    key: str
    name: str
    created: str
    used_s: float
    complete: bool
    context_tokens: int
    num_bytes: int
    model: str
    method: str
    inputs: tuple[dict[str, str], ...]
    extra: dict[str, Any]
    kept_ratio: float
    path: Path


def folder_bytes(folder: Path) -> int:
    """Disk space of the files under `folder`, as `du` counts it."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
    return total


class SessionStore:
    """The sessions under `directory`/sessions.

    Args:
        directory: root of the cache; made when something is saved, never by reading.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "sessions"

    def folder(self, key: str, *, partial: bool) -> Path:
        """Where the session with identity `key` lies or would lie."""
        return self.root / (key[:FOLDER_DIGITS] + (PARTIAL_SUFFIX if partial else ""))

    def prepare(self) -> None:
        """Make the folders, private to the user, tagged as a cache for backup programs.

        Raises:
            OSError: they cannot be made or written.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / "locks").mkdir(mode=0o700, exist_ok=True)
        tag = self.directory / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(CACHEDIR_TAG, "ascii")
        if not os.access(self.root, os.W_OK):
            raise PermissionError(f"{self.root} cannot be written")

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Hold the right to build or remove the session `key`.

        The lock goes with the process that holds it, however that ends.

        Yields:
            True if another process held it before, so that the session may be there now.
        """
        path = self.directory / "locks" / f"{key[:FOLDER_DIGITS]}.lock"
        lock = FileLock(path, mode=0o600)
        waited = False
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waited = True
            lock.acquire()
        try:
            yield waited
        finally:
            lock.release()

    def is_locked(self, key: str) -> bool:
        """True if another process builds the session `key` right now."""
        path = self.directory / "locks" / f"{key[:FOLDER_DIGITS]}.lock"
        if not path.exists():
            return False
        try:
            with FileLock(path, timeout=0, mode=0o600):
                return False
        except (Timeout, OSError):
            return True

    def list(self) -> list[SessionRecord]:
        """All readable sessions, most recently used first."""
        records = []
        for folder in self._folders():
            with contextlib.suppress(SessionError, OSError):
                records.append(self._record(folder))
        return sorted(records, key=lambda record: record.used_s, reverse=True)

    def _folders(self) -> tuple[Path, ...]:
        try:
            entries = list(os.scandir(self.root))
        except OSError:
            return ()
        return tuple(
            Path(entry.path)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and entry.name != QUARANTINE
        )

    def _record(self, folder: Path) -> SessionRecord:
        manifest = Manifest.read(folder)
        identity = manifest.identity
        return SessionRecord(
            id=manifest.key[:12],
            key=manifest.key,
            name=manifest.name,
            created=manifest.created,
            used_s=folder.stat().st_mtime,
            complete=not folder.name.endswith(PARTIAL_SUFFIX),
            context_tokens=manifest.context_tokens,
            num_bytes=folder_bytes(folder),
            model=str(identity.get("model_name", "")),
            method=str(identity.get("method", {}).get("name", "")),
            inputs=tuple(manifest.inputs),
            extra=manifest.extra,
            kept_ratio=1.0,
            path=folder,
        )

    def find(self, wanted: str | None = None) -> SessionRecord:
        """The session with this name, id, or unique start of an id; None takes the latest.

        Raises:
            SessionError: none, or more than one.
        """
        records = self.list()
        if not records:
            raise SessionError("there are no saved sessions", "ask about a document first")
        if wanted is None:
            return records[0]
        named = [record for record in records if record.name and record.name == wanted]
        if named:
            return named[0]
        matches = [record for record in records if wanted and record.key.startswith(wanted)]
        if not matches:
            raise SessionError(f"no session '{wanted}'", "see: hip sessions list")
        if len(matches) > 1:
            ids = ", ".join(record.id for record in matches)
            raise SessionError(f"'{wanted}' fits several sessions: {ids}", "give more digits")
        return matches[0]

    def context(self, record: SessionRecord) -> "np.ndarray":
        """Token ids of a session's context, int32 [N], so that no document is read again.

        Raises:
            SessionError: they are missing or damaged.
        """
        return read_tokens(record.path, Manifest.read(record.path).tokens_sha256)

    def remove(self, record: SessionRecord) -> None:
        """Delete a session. A process that reads it goes on undisturbed.

        Raises:
            SessionError: another process is building it.
            OSError: it cannot be deleted.
        """
        if self.is_locked(record.key):
            raise SessionError(f"session {record.id} is being built by another process")
        shutil.rmtree(record.path)

    def touch(self, folder: Path) -> None:
        """Mark as used now; a read-only cache stays as it is."""
        with contextlib.suppress(OSError):
            os.utime(folder)

    def quarantine(self, folder: Path) -> None:
        """Put a damaged session aside, so that a new one can take its place."""
        target = self.root / QUARANTINE
        with contextlib.suppress(OSError):
            target.mkdir(mode=0o700, exist_ok=True)
            os.rename(folder, target / f"{folder.name}.{time.time_ns()}")
            return
        shutil.rmtree(folder, ignore_errors=True)

    def make_room(self, num_bytes: int, max_bytes: int, keep: str) -> None:
        """Remove least recently used sessions until `num_bytes` more fit into the limit.

        Args:
            num_bytes: of the session to come.
            max_bytes: limit of all sessions; 0 means the smaller of 50 GiB and a quarter of the
                space that is free or taken by sessions.
            keep: key of a session that stays.
        """
        records = self.list()
        used = sum(record.num_bytes for record in records)
        if not max_bytes:
            max_bytes = min(MAX_BYTES, (shutil.disk_usage(self.root).free + used) // 4)
        if used + num_bytes > max_bytes:
            shutil.rmtree(self.root / QUARANTINE, ignore_errors=True)
        for record in reversed(records):
            if used + num_bytes <= max_bytes:
                return
            if record.key == keep or self.is_locked(record.key):
                continue
            with contextlib.suppress(SessionError, OSError):
                self.remove(record)
                used -= record.num_bytes
