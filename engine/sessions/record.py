"""A session as it is listed."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.manifest import (
    PARTIAL_SUFFIX,
    PROGRESS,
    Manifest,
    NewerSessionError,
    read_sealed,
)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as listed. Times are UTC seconds since the epoch; `num_bytes` is disk space.

    Of a partial session `tokens_done` of its `context_tokens` are there; the space of all of them
    is taken already.

    `kept_ratio` is the part of the context's pages that is there, `keep` what was asked for.

    `state` is complete, partial, newer (of a newer format), damaged (its manifest) or quarantined;
    of those with no manifest that can be read only the folder and its size are known.
    """

    id: str
    key: str
    name: str
    created: str
    used_s: float
    state: str
    context_tokens: int
    tokens_done: int
    num_bytes: int
    model: str
    method: str
    branch: str
    inputs: tuple[dict[str, str], ...]
    extra: dict[str, Any]
    kept_ratio: float
    path: Path
    keep: float = 1.0

    @property
    def complete(self) -> bool:
        """True if the whole context is there."""
        return self.state == "complete"

    @property
    def usable(self) -> bool:
        """True if a question can be asked."""
        return self.state in ("complete", "partial")


def folder_bytes(*paths: Path) -> int:
    """Disk space of what is under folders, as `du` counts it: linked files once."""
    found = {}
    for path in paths:
        for root, folders, names in os.walk(path):
            for name in [*names, *folders]:
                with contextlib.suppress(OSError):
                    entry = os.lstat(os.path.join(root, name))
                    found[entry.st_dev, entry.st_ino] = entry.st_blocks * 512
    return sum(found.values())


def read_record(folder: Path) -> SessionRecord:
    """The session in `folder`. Raises OSError when it is gone."""
    used_s, num_bytes = folder.stat().st_mtime, folder_bytes(folder)
    state = "partial" if folder.name.endswith(PARTIAL_SUFFIX) else "complete"
    try:
        manifest = Manifest.read(folder)
    except SessionError as error:
        state = "newer" if isinstance(error, NewerSessionError) else "damaged"
        key = folder.name.removesuffix(PARTIAL_SUFFIX)
        return SessionRecord(
            id=key[:12],
            key=key,
            name="",
            created="",
            used_s=used_s,
            state=state,
            context_tokens=0,
            tokens_done=0,
            num_bytes=num_bytes,
            model="",
            method="",
            branch="",
            inputs=(),
            extra={},
            kept_ratio=1.0,
            path=folder,
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
        tokens_done=manifest.context_tokens if state == "complete" else _tokens_done(folder),
        num_bytes=num_bytes,
        model=str(identity.get("model_name", "")),
        method=str(identity.get("method", {}).get("name", "")),
        branch=str(identity.get("branch", "")),
        inputs=tuple(manifest.inputs),
        extra=manifest.extra,
        kept_ratio=manifest.kept_ratio,
        path=folder,
        keep=float(identity.get("keep", 1.0)),
    )


def _tokens_done(folder: Path) -> int:
    """Progress of a partial session; 0 where it cannot be read."""
    try:
        return int(read_sealed(folder / PROGRESS).get("tokens_done", 0))
    except (SessionError, TypeError, ValueError):
        return 0
