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
from hipcli.engine.sessions.kept import fitting_ratio, kept_count, kept_name
from hipcli.engine.sessions.manifest import Manifest
from hipcli.engine.sessions.pruning import write_pruned
from hipcli.engine.sessions.reuse import longest_prefix
from hipcli.engine.sessions.room import limit_bytes, make_room, with_room
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout


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
        ratio: of the pages that the session to come keeps; known once `resume_or_create` has run.
    """

    sessions: SessionStore
    request: AskRequest
    identity: dict[str, Any]
    layout: KVLayout
    chunk_tokens: int
    key: str = field(init=False)
    name: str = field(init=False)
    prunable: bool = True
    ratio: float = field(init=False, default=1.0)
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

    def find(self) -> Generator[Event, None, Session | None]:
        """A complete session that serves the request: a full one serves every request, a pruned
        one those that ask for what it keeps, or leave that to hip."""
        keep = self.request.cache.keep
        if keep is not None and keep < 1:
            session = yield from self._open(self._pruned_key(kept_name(keep)), partial=False)
            if session is not None:
                return session
        session = yield from self._open(self.key, partial=False)
        if session is None and keep is None:
            for name in self._pruned_names():
                session = session or (yield from self._open(self._pruned_key(name), partial=False))
        return session

    def _pruned_key(self, name: str) -> str:
        return identity_key({**self._record, "keep": name})

    def _pruned_names(self) -> list[str]:
        """What pruned sessions of this context keep, the most first."""
        names = {
            str(identity["keep"])
            for identity in self.sessions.identities()
            if "keep" in identity and self.key == identity_key(_without_keep(identity))
        }
        return sorted(names, key=float, reverse=True)

    def _open(self, key: str, *, partial: bool) -> Generator[Event, None, Session | None]:
        """The session if it is there and sound; a damaged one is put aside, with a notice."""
        folder = self.sessions.folder(key, partial=partial)
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
        self.ratio = self._wanted_ratio()
        if not self.request.cache.refresh:
            session = yield from self._open(self.key, partial=True)
            if session is not None:
                return session
            prefix = yield from self._prefix()
        whole = self.layout.num_bytes(len(ids))
        num_bytes = self._kept_bytes(self.ratio)
        manifest = self._manifest(None if prefix is None else prefix[0].manifest)
        disk = self.sessions.disk
        try:
            if os.path.lexists(folder):
                disk.remove(folder)
            limit, brief = self.request.cache.max_bytes, whole - num_bytes
            make_room(self.sessions, num_bytes, limit, self.key, brief)
            return with_room(
                self.sessions,
                whole,
                self.key,
                lambda: Session.create(folder, manifest, ids, disk, prefix),
            )
        except OSError as error:
            yield not_saved(error)
            return None

    def _wanted_ratio(self) -> float:
        """Of the pages that stay: what the request says, or the largest that fits."""
        keep = self.request.cache.keep
        if not self.prunable:
            return 1.0
        if keep is not None:
            return keep
        tokens = len(self.request.context_ids)
        limit = limit_bytes(self.sessions, self.request.cache.max_bytes)
        if self.layout.num_bytes(tokens) <= limit:
            return 1.0
        page_bytes = self.layout.num_bytes(1)
        # Not even sinks and window fit: all of it is refused, with the bytes that it takes.
        return fitting_ratio(tokens, self.identity.get("method", {}), page_bytes, limit) or 1.0

    def _kept_bytes(self, ratio: float) -> int:
        """Bytes of a session that keeps so many of its pages."""
        tokens = len(self.request.context_ids)
        if ratio == 1:
            return self.layout.num_bytes(tokens)
        count = kept_count(tokens, self.identity.get("method", {}), ratio)
        return self.layout.num_bytes(count * PAGE_TOKENS)

    def prune(self, session: Session) -> Session | None:
        """Put a pruned session in the place of one that was just read to its end.

        Returns:
            It, or None if there is nothing to leave out.

        Raises:
            OSError: the disk does not take it.
        """
        session.sync()
        # The manifest goes on to the pruned session, with the name in it.
        folder = write_pruned(self.sessions, session.folder, session.manifest, self.ratio)
        if folder is None:
            return None
        session.discard()
        return Session.open(folder, self.sessions.disk)

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
        layout, former = self.layout, self._former()
        # What is read anew keeps its name and its conversation.
        name = self.name or (former.name if former else "")
        extra = {**(former.extra if former else {}), **self.request.extra}
        return Manifest(
            key=self.key,
            name=name,
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
            extra=extra,
        )

    def _former(self) -> Manifest | None:
        """The session whose place the new one takes, if it can be read."""
        folder = self.sessions.folder(self.key, partial=False)
        try:
            return Manifest.read(folder) if folder.exists() else None
        except SessionError:
            return None


def _without_keep(identity: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name != "keep"}


def damaged(error: SessionError, session: Session | None = None) -> Notice:
    """Tells that a session was put aside."""
    which = "" if session is None else f"session {session.id}: "
    return Notice("session_damaged", f"{which}{error}; the documents are read again")


def pruned(session: Session) -> Notice:
    """Tells that an answer rests on a part of the context."""
    part = session.manifest.kept_ratio
    what = f"the session keeps {part:.1%} of the context's pages; --keep full keeps all"
    return Notice("pruned", what)


def not_saved(error: OSError) -> Notice:
    """Tells that what is read is kept in this process alone."""
    return Notice("cache_unwritable", f"the context is not saved: {error.strerror or error}")
