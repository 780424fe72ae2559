"""The saved sessions as one request sees them: the one that matches, or a place for a new one."""

import hashlib
import os
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from hipcli.engine.errors import DamagedSessionError, SessionError
from hipcli.engine.events import Event, Notice
from hipcli.engine.request import AskRequest
from hipcli.engine.sessions.identity import identity_key
from hipcli.engine.sessions.manifest import Manifest
from hipcli.engine.sessions.reuse import longest_prefix
from hipcli.engine.sessions.room import make_room, with_room
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.store.layout import KVLayout


@dataclass(slots=True)
class Saved:
    """What of a request's context is saved, and saving it.

    Args:
        sessions: all of them.
        request: context ids, inputs, cache settings.
        identity: everything besides the documents that shapes the KV.
        layout: of the KV.
        chunk_tokens: reading goes on at multiples of it.

    Attributes:
        key: the identity of the session.
        name: of the session to come; that of a damaged one goes to what takes its place.
    """

    sessions: SessionStore
    request: AskRequest
    identity: dict[str, Any]
    layout: KVLayout
    chunk_tokens: int
    key: str = field(init=False)
    name: str = field(init=False)
    _record: dict[str, Any] = field(init=False)
    _tokens_sha256: str = field(init=False)

    def __post_init__(self) -> None:
        ids = self.request.context_ids.astype("<i4").tobytes()
        self._tokens_sha256 = hashlib.sha256(ids).hexdigest()
        inputs = [[record.name, record.sha256] for record in self.request.inputs]
        # The ids as well: a cut of the same documents is another context.
        self._record = {**self.identity, "inputs": inputs, "tokens": self._tokens_sha256}
        if self.request.cache.branch:
            self._record["branch"] = self.request.cache.branch
        self.key = identity_key(self._record)
        self.name = self.request.cache.name

    def open(self, *, partial: bool) -> Generator[Event, None, Session | None]:
        """The session if it is there and sound; a damaged one is put aside, with a notice."""
        folder = self.sessions.folder(self.key, partial=partial)
        if not os.path.lexists(folder):
            return None
        try:
            if not folder.is_dir():
                raise DamagedSessionError(f"{folder.name} in the cache is not a session")
            session = Session.open(folder, self.sessions.disk)
            if not np.array_equal(session.context_ids(), self.request.context_ids):
                raise DamagedSessionError(f"session {session.id} holds other tokens")
            return session
        except SessionError as error:
            # Removed by another process just now: nothing to tell.
            if os.path.lexists(folder):
                self.sessions.quarantine(folder)
                yield damaged(error)
            return None

    def resume_or_create(self) -> Generator[Event, None, Session | None]:
        """The session to read into, or None when the disk does not take it."""
        folder = self.sessions.folder(self.key, partial=True)
        ids, prefix = self.request.context_ids, None
        if not self.request.cache.refresh:
            session = yield from self.open(partial=True)
            if session is not None:
                return session
            prefix = yield from self._prefix()
        num_bytes = self.layout.num_bytes(len(ids))
        manifest = self._manifest(None if prefix is None else prefix[0].manifest)
        disk = self.sessions.disk
        try:
            if os.path.lexists(folder):
                disk.remove(folder)
            make_room(self.sessions, num_bytes, self.request.cache.max_bytes, self.key)
            return with_room(
                self.sessions,
                num_bytes,
                self.key,
                lambda: Session.create(folder, manifest, ids, disk, prefix),
            )
        except OSError as error:
            yield not_saved(error)
            return None

    def _prefix(self) -> Generator[Event, None, tuple[Session, int] | None]:
        """The session that begins as this context does, and how many tokens they share."""
        ids = self.request.context_ids
        while True:
            prefix = longest_prefix(self.sessions, self.identity, ids, self.chunk_tokens)
            if prefix is None:
                return None
            donor, tokens = prefix
            try:
                donor.compare(tokens)
                return prefix
            except DamagedSessionError as error:
                yield damaged(error, donor)
                if not self.sessions.quarantine(donor.folder):
                    return None

    def _manifest(self, donor: Manifest | None) -> Manifest:
        layout = self.layout
        return Manifest(
            key=self.key,
            name=self.name,
            created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            context_tokens=len(self.request.context_ids),
            tokens_sha256=self._tokens_sha256,
            page_bytes=layout.page_bytes,
            summary_bytes=layout.summary_bytes,
            num_layers=layout.num_layers,
            # Pages taken over keep their checksums.
            seed=int(self.key[:8], 16) if donor is None else donor.seed,
            identity=self._record,
            inputs=[{"name": r.name, "sha256": r.sha256} for r in self.request.inputs],
            extra=self.request.extra,
        )


def damaged(error: SessionError, session: Session | None = None) -> Notice:
    """Tells that a session was put aside."""
    which = "" if session is None else f"session {session.id}: "
    return Notice("session_damaged", f"{which}{error}; the documents are read again")


def not_saved(error: OSError) -> Notice:
    """Tells that what is read is kept in this process alone."""
    return Notice("cache_unwritable", f"the context is not saved: {error.strerror or error}")
