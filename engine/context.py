"""A context in the KV store: mapped from its session, or read now and saved on the way."""

import contextlib
import hashlib
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from hipcli.engine.errors import DamagedSessionError, NotCachedError, SessionError
from hipcli.engine.events import Event, Notice, Phase, Progress, SessionInfo
from hipcli.engine.methods.base import Method
from hipcli.engine.passes import PrefillPass
from hipcli.engine.request import AskRequest
from hipcli.engine.runner import Runner
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.identity import session_key
from hipcli.engine.sessions.manifest import Manifest
from hipcli.engine.sessions.reuse import longest_prefix
from hipcli.engine.sessions.room import make_room, with_room
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import KVStore


@dataclass(slots=True)
class Context:
    """What reading leaves behind.

    Args:
        store: holds the context's keys and values; the question goes after them.
        session: what was saved or reused.
        cached_tokens: tokens that came from a session.
        prefill_s: time spent reading.
    """

    store: KVStore
    session: SessionInfo = field(default_factory=SessionInfo)
    cached_tokens: int = 0
    prefill_s: float = 0.0


@dataclass(slots=True)
class ContextReader:
    """Brings one request's context into a store. While it lives, the session is not evicted.

    Args:
        runner: the model.
        method: selects while reading.
        request: context ids, inputs, cache settings.
        identity: everything besides the documents that shapes the KV.
        chunk_tokens: tokens per forward pass.
        spare_tokens: room after the context, for the question and the answer.
        disk: makes all changes to saved sessions.
    """

    runner: Runner
    method: Method
    request: AskRequest
    identity: dict[str, Any]
    chunk_tokens: int
    spare_tokens: int
    disk: Disk = field(default_factory=Disk)
    _session: Session | None = None
    _distrusted: bool = False
    _sessions: SessionStore | None = None

    def read(self) -> Generator[Event, None, Context]:
        """Events of reading; returns the `Context` (for `yield from`).

        Raises:
            NotCachedError: `cached_only`, and no complete session matches.
        """
        cache = self.request.cache
        if cache.directory is None:
            if cache.cached_only:
                raise NotCachedError("--cached-only with the cache switched off")
            return (yield from self._without_session())
        self._sessions = SessionStore(cache.directory, self.disk)
        while not self._distrusted:
            try:
                return (yield from self._read(self._sessions))
            except DamagedSessionError as error:
                yield self.put_aside(error)
        return (yield from self._without_session())

    def put_aside(self, error: DamagedSessionError) -> Notice:
        """Put the session of the last `read` aside: its files are not what was written.

        From a read-only cache it cannot be moved; the next `read` goes without sessions then.

        Returns:
            What to tell.
        """
        self._distrusted = True
        if self._session is not None and self._sessions is not None:
            self._distrusted = not self._sessions.quarantine(self._session.folder)
        self._session = None
        return Notice("session_damaged", f"{error}; the documents are read again")

    def _read(self, sessions: SessionStore) -> Generator[Event, None, Context]:
        cache = self.request.cache
        key = session_key(self._record())
        if not cache.refresh:
            session = yield from self._open(sessions, key, partial=False)
            if session is not None:
                return (yield from self._reuse(sessions, session))
        if cache.cached_only:
            raise NotCachedError(
                "no saved session matches these documents, this model and these settings",
                "ask once without --cached-only, or see: hip sessions list",
            )
        with contextlib.ExitStack() as held:
            try:
                sessions.prepare()
                builder = sessions.builder(key)
                if builder:
                    yield Notice("session_busy", f"{builder} reads these documents; waiting for it")
                held.enter_context(sessions.lock(key))
            except OSError as error:
                yield _not_saved(error)
                return (yield from self._without_session())
            return (yield from self._build(sessions, key))

    def _record(self) -> dict[str, Any]:
        inputs = [[record.name, record.sha256] for record in self.request.inputs]
        # The ids as well: a cut of the same documents is another context.
        record = {**self.identity, "inputs": inputs, "tokens": self._tokens_sha256()}
        branch = self.request.cache.branch
        return {**record, "branch": branch} if branch else record

    def _tokens_sha256(self) -> str:
        return hashlib.sha256(self.request.context_ids.astype("<i4").tobytes()).hexdigest()

    def _open(
        self, sessions: SessionStore, key: str, *, partial: bool
    ) -> Generator[Event, None, Session | None]:
        """The session if it is there and sound; a damaged one is put aside, with a notice."""
        folder = sessions.folder(key, partial=partial)
        if not os.path.lexists(folder):
            return None
        try:
            if not folder.is_dir():
                raise DamagedSessionError(f"{folder.name} in the cache is not a session")
            session = Session.open(folder, self.disk)
            if not np.array_equal(session.context_ids(), self.request.context_ids):
                raise DamagedSessionError(f"session {session.id} holds other tokens")
        except SessionError as error:
            # Removed by another process just now: nothing to tell.
            if os.path.lexists(folder):
                sessions.quarantine(folder)
                yield Notice("session_damaged", f"{error}; the documents are read again")
            return None
        self._session = session
        return session

    def _new_store(self) -> KVStore:
        capacity = len(self.request.context_ids) + self.spare_tokens
        return self.runner.new_store(capacity)

    def _info(self, session: Session, *, reused: bool) -> SessionInfo:
        manifest = session.manifest
        return SessionInfo(
            id=session.id,
            name=manifest.name,
            created=manifest.created,
            reused=reused,
            complete=session.complete,
        )

    def _reuse(self, sessions: SessionStore, session: Session) -> Generator[Event, None, Context]:
        yield from self._name(sessions, session)
        sessions.touch(session.folder)
        store = self._new_store()
        session.map_into(store)
        return Context(store, self._info(session, reused=True), session.tokens_done)

    def _name(self, sessions: SessionStore, session: Session) -> Generator[Event, None, None]:
        """Give the session the name asked for; another one that has it loses it."""
        name = self.request.cache.name
        if not name:
            return
        with contextlib.suppress(OSError):
            session.rename(name)
        lost = sessions.claim_name(name, session.manifest.key)
        if lost:
            yield Notice(
                "name_moved", f"the name {name!r} is this session's now; {', '.join(lost)} had it"
            )

    def _without_session(self) -> Generator[Event, None, Context]:
        self._session = None
        store = self._new_store()
        started = time.perf_counter()
        yield from self._prefill(store, 0)
        return Context(store, SessionInfo(), 0, time.perf_counter() - started)

    def _build(self, sessions: SessionStore, key: str) -> Generator[Event, None, Context]:
        if not self.request.cache.refresh:
            # Another process may have finished it while this one waited.
            complete = yield from self._open(sessions, key, partial=False)
            if complete is not None:
                return (yield from self._reuse(sessions, complete))
        session = yield from self._resume_or_create(sessions, key)
        if session is None:
            return (yield from self._without_session())
        self._session = session
        yield from self._name(sessions, session)
        # A resumed prefill goes on at a border of chunks, so that it equals one run through.
        start = session.tokens_done // self.chunk_tokens * self.chunk_tokens
        try:
            session.begin_at(start)
        except OSError as error:
            yield self._give_up(error)
            return (yield from self._without_session())
        store = self._new_store()
        session.map_into(store)
        started = time.perf_counter()
        yield from self._prefill(store, start)
        elapsed = time.perf_counter() - started
        if self._session is None:
            return Context(store, SessionInfo(), start, elapsed)
        try:
            store.flush()
            session.finish()
        except OSError as error:
            yield self._give_up(error)
            return Context(store, SessionInfo(), start, elapsed)
        sessions.touch(session.folder)
        # From here on writes stay in this process: the question must not reach the files.
        session.map_into(store)
        return Context(store, self._info(session, reused=start > 0), start, elapsed)

    def _give_up(self, error: OSError) -> Notice:
        """Save no more; what was read so far stays in this process."""
        if self._session is not None:
            self._session.discard()
        self._session = None
        return _not_saved(error)

    def _resume_or_create(
        self, sessions: SessionStore, key: str
    ) -> Generator[Event, None, Session | None]:
        """The session to build into, or None when the disk does not take it."""
        folder = sessions.folder(key, partial=True)
        ids, prefix = self.request.context_ids, None
        if not self.request.cache.refresh:
            session = yield from self._open(sessions, key, partial=True)
            if session is not None:
                return session
            prefix = yield from self._prefix(sessions)
        try:
            if os.path.lexists(folder):
                sessions.disk.remove(folder)
            num_bytes = self.runner.layout.num_bytes(len(ids))
            make_room(sessions, num_bytes, self.request.cache.max_bytes, key)
            manifest = self._manifest(key, None if prefix is None else prefix[0].manifest)
            return with_room(
                sessions,
                num_bytes,
                key,
                lambda: Session.create(folder, manifest, ids, self.disk, prefix),
            )
        except OSError as error:
            yield _not_saved(error)
            return None

    def _prefix(self, sessions: SessionStore) -> Generator[Event, None, tuple[Session, int] | None]:
        """The session that begins as this context does, and how many tokens they share."""
        ids = self.request.context_ids
        while True:
            prefix = longest_prefix(sessions, self.identity, ids, self.chunk_tokens)
            if prefix is None:
                return None
            donor, tokens = prefix
            try:
                donor.compare(tokens)
                return prefix
            except DamagedSessionError as error:
                yield Notice("session_damaged", f"{error}; the documents are read again")
                if not sessions.quarantine(donor.folder):
                    return None

    def _manifest(self, key: str, donor: Manifest | None) -> Manifest:
        layout = self.runner.layout
        return Manifest(
            key=key,
            name=self.request.cache.name,
            created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            context_tokens=len(self.request.context_ids),
            tokens_sha256=self._tokens_sha256(),
            page_bytes=layout.page_bytes,
            summary_bytes=layout.summary_bytes,
            num_layers=layout.num_layers,
            # Pages taken over keep their checksums.
            seed=int(key[:8], 16) if donor is None else donor.seed,
            identity=self._record(),
            inputs=[{"name": r.name, "sha256": r.sha256} for r in self.request.inputs],
            extra=self.request.extra,
        )

    def _prefill(self, store: KVStore, start: int) -> Generator[Event, None, None]:
        """Run the context from `start` on through the model, chunk by chunk.

        What is read is saved in `_session`, until that fails.
        """
        ids = torch.from_numpy(self.request.context_ids.astype(np.int64))
        total, first = len(ids), start
        attention = PrefillPass(self.method)
        yield Phase("prefill")
        started = time.perf_counter()
        yield self._progress(store, start, start, total, started)
        while start < total:
            end = min(start + self.chunk_tokens, total)
            step = StepInput(store, self.runner.tables, attention, start)
            self.runner.forward(ids[start:end], step)
            if self._session is not None:
                try:
                    self._session.checkpoint(store.save(start, end))
                except OSError as error:
                    yield self._give_up(error)
            start = end
            yield self._progress(store, end, first, total, started)

    def _progress(
        self, store: KVStore, done: int, cached: int, total: int, started: float
    ) -> Progress:
        elapsed = time.perf_counter() - started
        rate = (done - cached) / elapsed if done > cached and elapsed > 0 else 0.0
        eta = (total - done) / rate if rate else None
        return Progress("prefill", done, cached, total, rate, eta, store.layout.num_bytes(done))


def _not_saved(error: OSError) -> Notice:
    return Notice("cache_unwritable", f"the context is not saved: {error.strerror or error}")
