"""Which saved session begins as a new context does: its first pages are taken over."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.identity import LABELS
from hipcli.engine.sessions.session import Session
from hipcli.engine.sessions.store import SessionStore

# What of an identity says which text was read. All else must be the same for pages to serve.
TEXT_FIELDS = ("inputs", "tokens", "branch", *LABELS)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many first elements two arrays share."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def longest_prefix(
    store: SessionStore, identity: dict[str, Any], context_ids: np.ndarray, step_tokens: int
) -> tuple[Session, int] | None:
    """The complete session that shares most of its first tokens with a context.

    Args:
        store: the sessions.
        identity: everything besides the documents that shapes keys and values.
        context_ids: int32 [N].
        step_tokens: only multiples of it count; whole pages.

    Returns:
        The session, which is kept from removal while it is referred to, and the number of tokens;
        None if not even `step_tokens` are shared.
    """
    best: tuple[Session, int] | None = None
    for session in _candidates(store, _canonical(identity)):
        try:
            shared = common_prefix(session.context_ids(), context_ids)
        except SessionError:
            continue
        shared = shared // step_tokens * step_tokens
        if shared > (best[1] if best else 0):
            best = (session, shared)
    return best


def _candidates(store: SessionStore, wanted: str) -> Iterator[Session]:
    for record in store.list():
        if record.complete:
            try:
                session = Session.open(record.path, store.disk)
            except (SessionError, OSError):
                continue
            if _canonical(session.manifest.identity) == wanted:
                yield session


def _canonical(identity: dict[str, Any]) -> str:
    kept = {name: value for name, value in identity.items() if name not in TEXT_FIELDS}
    return json.dumps(kept, sort_keys=True)
