"""A context in the KV store: mapped from its session, or read now and saved on the way."""

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from hipcli.engine.errors import DamagedSessionError, NotCachedError, UsageError
from hipcli.engine.events import Event, Notice, SessionInfo
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.base import Method
from hipcli.engine.passes.tiers import check_method
from hipcli.engine.reading.chunks import Chunks
from hipcli.engine.reading.overflow import overflow
from hipcli.engine.reading.saving import Saved, damaged, not_saved, pruned
from hipcli.engine.reading.worth import page_worth
from hipcli.engine.request import AskRequest
from hipcli.engine.sessions.companion import read_companion, write_companion
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.kept import chosen_pages
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, num_pages
from hipcli.engine.store.pruning import kept_copy


@dataclass(slots=True)
class Context:
    """What reading leaves behind.

    Args:
        store: holds the context's keys and values; the question goes after them.
        session: what was saved or reused.
        cached_tokens: tokens that came from a session.
        prefill_s: time spent reading.
        worth: of each page, once something was pruned in memory.
    """

    store: KVStore
    session: SessionInfo = field(default_factory=SessionInfo)
    cached_tokens: int = 0
    prefill_s: float = 0.0
    worth: list[float] = field(default_factory=list)


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
    _saved: Saved | None = None
    _session: Session | None = None
    _distrusted: bool = False

    def read(self) -> Generator[Event, None, Context]:
        """Events of reading; returns the `Context` (for `yield from`).

        Raises:
            NotCachedError: `cached_only`, and no complete session matches.
        """
        cache, own = self.request.cache, self.method.own_attention
        prunable = own is None or not own.keeps_state
        if not prunable and cache.keep is not None and cache.keep < 1:
            raise UsageError(
                f"--keep does not go with --method {self.method.name}, which needs all it has read",
                "leave out --keep, or use --method hip",
            )
        if cache.directory is None:
            if cache.cached_only:
                raise NotCachedError("--cached-only with the cache switched off")
            return (yield from self._without_session())
        if self._saved is None:
            self._saved = Saved(
                SessionStore(cache.directory, self.disk),
                self.request,
                self.identity,
                self.runner.layout,
                self.chunk_tokens,
                prunable,
            )
        while not self._distrusted:
            try:
                return (yield from self._read(self._saved))
            except DamagedSessionError as error:
                yield self.put_aside(error)
        return (yield from self._without_session())

    def pruned(self, context: Context, keep: float) -> Context:
        """What is kept of a context that is saved nowhere; a copy, the context stays whole."""
        if not context.worth:
            context.worth = self._worth(context.store)
        settings = self.identity.get("method", {})
        pages = chosen_pages(context.worth, context.store.length, settings, keep)
        tokens = len(pages) * PAGE_TOKENS + self.spare_tokens
        store = kept_copy(context.store, pages, tokens, self._overflow)
        ratio = len(pages) / num_pages(context.store.length)
        session = replace(context.session, kept_ratio=ratio)
        return Context(store, session, context.cached_tokens, context.prefill_s)

    def _overflow(self, store: KVStore) -> None:
        """`overflow` of what is kept; for the whole context it was told already."""
        for _ in overflow(store, self.disk):
            pass

    def put_aside(self, error: DamagedSessionError) -> Notice:
        """Put the session of the last `read` aside: its files are not what was written.

        From a read-only cache it cannot be moved; the next `read` goes without sessions then.

        Returns:
            What to tell.
        """
        session, saved = self._session, self._saved
        self._session, self._distrusted = None, True
        if session is not None and saved is not None:
            saved.name = saved.name or session.manifest.name
            self._distrusted = not saved.sessions.quarantine(session.folder)
        return damaged(error, session)

    def _read(self, saved: Saved) -> Generator[Event, None, Context]:
        cache = self.request.cache
        if not cache.refresh:
            session = yield from saved.find()
            if session is not None:
                return (yield from self._reuse(saved, session))
        if cache.cached_only:
            raise NotCachedError(
                "no saved session matches these documents, this model and these settings",
                "ask once without --cached-only, or see: hip sessions list",
            )
        with contextlib.ExitStack() as held:
            try:
                saved.sessions.prepare()
                builder = saved.sessions.builder(saved.key)
                if builder:
                    yield Notice("session_busy", f"{builder} reads these documents; waiting for it")
                held.enter_context(saved.sessions.lock(saved.key))
            except OSError as error:
                yield not_saved(error)
                return (yield from self._without_session())
            return (yield from self._build(saved))

    def _new_store(self, context_tokens: int = 0) -> KVStore:
        """For so many tokens of context, or all of them."""
        context_tokens = context_tokens or len(self.request.context_ids)
        store = self.runner.new_store(context_tokens + self.spare_tokens)
        check_method(self.method, store)
        return store

    def _worth(self, store: KVStore) -> list[float]:
        """What each page of a context is worth keeping."""
        worth: list[float] = page_worth(store).tolist()
        return worth

    def _info(self, session: Session, *, reused: bool) -> SessionInfo:
        manifest = session.manifest
        return SessionInfo(
            id=session.id,
            name=manifest.name,
            created=manifest.created,
            reused=reused,
            complete=session.complete,
            kept_ratio=manifest.kept_ratio,
        )

    def _reuse(self, saved: Saved, session: Session) -> Generator[Event, None, Context]:
        self._session = session
        yield from self._name(saved, session)
        saved.sessions.touch(session.folder)
        store = self._new_store(session.manifest.stored_tokens)
        session.map_into(store)
        own = self.method.own_attention
        if own is not None and own.keeps_state:
            own.resume(store, read_companion(session.folder))
        keep = self.request.cache.keep
        if session.manifest.kept:
            yield pruned(session)
        elif keep is not None and keep < 1:
            what = f"session {session.id} is saved in full and stays so"
            hint = f"hip sessions prune {session.id} --keep {keep:g} shrinks it"
            yield Notice("kept_whole", f"{what}; {hint}")
        return Context(store, self._info(session, reused=True), session.tokens_done)

    def _name(self, saved: Saved, session: Session) -> Generator[Event, None, None]:
        """Give the session the name asked for; another one that has it loses it."""
        if not saved.name:
            return
        former = session.manifest.name
        with contextlib.suppress(OSError):
            session.rename(saved.name)
            if former and former != saved.name:
                what = f"session {session.id} is called {saved.name!r} now; it was {former!r}"
                yield Notice("renamed", what)
        lost = ", ".join(saved.sessions.claim_name(saved.name, session.manifest.key))
        if lost:
            what = f"the name {saved.name!r} is this session's now; {lost} had it"
            yield Notice("name_moved", what)

    def _without_session(self) -> Generator[Event, None, Context]:
        self._session = None
        store = self._new_store()
        yield from overflow(store, self.disk)
        started = time.perf_counter()
        yield from self._prefill(store, 0)
        return Context(store, SessionInfo(), 0, time.perf_counter() - started)

    def _build(self, saved: Saved) -> Generator[Event, None, Context]:
        if not self.request.cache.refresh:
            # Another process may have finished it while this one waited.
            complete = yield from saved.find()
            if complete is not None:
                return (yield from self._reuse(saved, complete))
        session = yield from saved.resume_or_create()
        if session is None:
            return (yield from self._without_session())
        self._session = session
        yield from self._name(saved, session)
        # A resumed prefill goes on at a border of chunks, so that it equals one run through.
        start = session.tokens_done // self.chunk_tokens * self.chunk_tokens
        own = self.method.own_attention
        if own is not None and own.keeps_state:
            # What it would have to know of the first tokens is saved with the whole context only.
            start = 0
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
            if own is not None and own.keeps_state and store.companion is not None:
                write_companion(session.folder, store.companion.tensors(), self.disk)
            session.remember_worth(self._worth(store))
            fewer = saved.prune(session) if saved.ratio < 1 else None
            if fewer is None:
                session.finish()
        except OSError as error:
            yield self._give_up(error)
            return Context(store, SessionInfo(), start, elapsed)
        if fewer is not None:
            self._session = session = fewer
            yield pruned(session)
            # Answered from what is kept, as every later question will be. The former pages go
            # before room is taken for these.
            del store
            store = self._new_store(session.manifest.stored_tokens)
        saved.sessions.touch(session.folder)
        # From here on writes stay in this process: the question must not reach the files.
        session.map_into(store)
        return Context(store, self._info(session, reused=start > 0), start, elapsed)

    def _give_up(self, error: OSError) -> Notice:
        """Save no more; what was read so far stays in this process."""
        if self._session is not None:
            self._session.discard()
        self._session = None
        return not_saved(error)

    def _prefill(self, store: KVStore, start: int) -> Generator[Event, None, None]:
        """Read the context from `start` on; what is read is saved in `_session`, until that
        fails."""
        chunks = Chunks(self.runner, self.method, self.request.context_ids, self.chunk_tokens)

        def save(begin: int, end: int) -> Notice | None:
            if self._session is not None:
                try:
                    self._session.checkpoint(store.save(begin, end))
                except OSError as error:
                    return self._give_up(error)
            return None

        yield from chunks.read(store, start, save, lambda: self._session is not None)
