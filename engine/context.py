"""A context in the KV store: mapped from its session, or read now and saved on the way."""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch

from hipcli.engine.errors import NotCachedError, SessionError
from hipcli.engine.events import Event, Notice, Phase, Progress, SessionInfo
from hipcli.engine.methods.base import Method
from hipcli.engine.passes import PrefillPass
from hipcli.engine.request import AskRequest
from hipcli.engine.runner import Runner
from hipcli.engine.sessions.identity import session_key
from hipcli.engine.sessions.manifest import Manifest
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import KVStore


@dataclass(slots=True)
class Context:
    """What `open_context` leaves behind.

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
    """Brings one request's context into a store.

    Args:
        runner: the model.
        method: selects while reading.
        request: context ids, inputs, cache settings.
        identity: everything besides the documents that shapes the KV.
        chunk_tokens: tokens per forward pass.
        spare_tokens: room after the context, for the question and the answer.
    """

    runner: Runner
    method: Method
    request: AskRequest
    identity: dict[str, Any]
    chunk_tokens: int
    spare_tokens: int

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
        sessions = SessionStore(cache.directory)
        key = session_key(self._record())
        if not cache.refresh:
            session = self._open(sessions, key, partial=False)
            if session is not None and not isinstance(session, Notice):
                return self._reuse(sessions, session)
            if isinstance(session, Notice):
                yield session
        if cache.cached_only:
            raise NotCachedError(
                "no saved session matches these documents, this model and these settings",
                "ask once without --cached-only, or see: hip sessions list",
            )
        try:
            sessions.prepare()
        except OSError as error:
            yield Notice("cache_unwritable", f"the context is not saved: {error}")
            return (yield from self._without_session())
        return (yield from self._build(sessions, key))

    def _record(self) -> dict[str, Any]:
        inputs = [[record.name, record.sha256] for record in self.request.inputs]
        # The ids as well: a cut of the same documents is another context.
        return {**self.identity, "inputs": inputs, "tokens": self._tokens_sha256()}

    def _tokens_sha256(self) -> str:
        return hashlib.sha256(self.request.context_ids.astype("<i4").tobytes()).hexdigest()

    def _open(self, sessions: SessionStore, key: str, *, partial: bool) -> Session | Notice | None:
        """The session if it is there and sound; a notice after putting a damaged one aside."""
        folder = sessions.folder(key, partial=partial)
        if not folder.exists():
            return None
        try:
            if not folder.is_dir():
                raise SessionError(f"{folder.name} in the cache is not a session")
            session = Session.open(folder)
            if not np.array_equal(session.context_ids(), self.request.context_ids):
                raise SessionError(f"session {session.id} holds other tokens")
            return session
        except SessionError as error:
            sessions.quarantine(folder)
            return Notice("session_damaged", f"{error}; the documents are read again")

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

    def _reuse(self, sessions: SessionStore, session: Session) -> Context:
        name = self.request.cache.name
        if name and name != session.manifest.name:
            session.manifest = dataclasses.replace(session.manifest, name=name)
            with contextlib.suppress(OSError):
                session.manifest.write(session.folder)
        sessions.touch(session.folder)
        store = self._new_store()
        session.map_into(store)
        return Context(store, self._info(session, reused=True), session.tokens_done)

    def _without_session(self) -> Generator[Event, None, Context]:
        store = self._new_store()
        started = time.perf_counter()
        yield from self._prefill(store, None)
        return Context(store, SessionInfo(), 0, time.perf_counter() - started)

    def _build(self, sessions: SessionStore, key: str) -> Generator[Event, None, Context]:
        if sessions.is_locked(key):
            yield Notice("session_busy", "another process reads these documents; waiting for it")
        with sessions.lock(key) as waited:
            if waited:
                session = self._open(sessions, key, partial=False)
                if isinstance(session, Session):
                    return self._reuse(sessions, session)
            session = yield from self._resume_or_create(sessions, key)
            if session is None:
                return (yield from self._without_session())
            cached = session.tokens_done
            store = self._new_store()
            session.map_into(store)
            started = time.perf_counter()
            yield from self._prefill(store, session)
            store.flush()
            session.finish()
            elapsed = time.perf_counter() - started
            # From here on writes stay in this process: the question must not reach the files.
            session.map_into(store)
            return Context(store, self._info(session, reused=cached > 0), cached, elapsed)

    def _resume_or_create(
        self, sessions: SessionStore, key: str
    ) -> Generator[Event, None, Session | None]:
        """The session to build into, or None when the disk does not take it."""
        if not self.request.cache.refresh:
            session = self._open(sessions, key, partial=True)
            if isinstance(session, Notice):
                yield session
            elif session is not None:
                return session
        layout = self.runner.layout
        ids = self.request.context_ids
        manifest = Manifest(
            key=key,
            name=self.request.cache.name,
            created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            context_tokens=len(ids),
            tokens_sha256=self._tokens_sha256(),
            page_bytes=layout.page_bytes,
            summary_bytes=layout.summary_bytes,
            num_layers=layout.num_layers,
            identity=self._record(),
            inputs=[{"name": r.name, "sha256": r.sha256} for r in self.request.inputs],
            extra=self.request.extra,
        )
        try:
            num_bytes = layout.num_bytes(len(ids))
            sessions.make_room(num_bytes, self.request.cache.max_bytes, key)
            return Session.create(sessions.folder(key, partial=True), manifest, ids)
        except OSError as error:
            yield Notice("cache_unwritable", f"the context is not saved: {error}")
            return None

    def _prefill(self, store: KVStore, session: Session | None) -> Generator[Event, None, None]:
        """Run what is missing of the context through the model, chunk by chunk."""
        ids = torch.from_numpy(self.request.context_ids.astype(np.int64))
        total, cached = len(ids), store.length
        attention = PrefillPass(self.method)
        yield Phase("prefill")
        started = time.perf_counter()
        # A resumed prefill goes on at a border of chunks, so that it equals one run through.
        start = cached // self.chunk_tokens * self.chunk_tokens
        yield self._progress(store, start, start, total, started)
        first = start
        while start < total:
            end = min(start + self.chunk_tokens, total)
            step = StepInput(store, self.runner.tables, attention, start)
            self.runner.forward(ids[start:end], step)
            if session is not None:
                session.checkpoint(store.save(start, end))
            start = end
            yield self._progress(store, end, first, total, started)

    def _progress(
        self, store: KVStore, done: int, cached: int, total: int, started: float
    ) -> Progress:
        elapsed = time.perf_counter() - started
        rate = (done - cached) / elapsed if done > cached and elapsed > 0 else 0.0
        eta = (total - done) / rate if rate else None
        return Progress("prefill", done, cached, total, rate, eta, store.layout.num_bytes(done))
