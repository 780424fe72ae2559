"""Saved sessions as words, rows and JSON, and how a command line names them."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli.config.settings import Settings
from hipcli.engine.errors import SessionError
from hipcli.terminal import completion, formatting

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord, SessionStore


# Of a session with many documents a table names so many.
_MAX_NAMES = 3
_ARGUMENT = typer.Argument(metavar="ID", autocompletion=completion.sessions)
Keys = Annotated[list[str] | None, _ARGUMENT]
Key = Annotated[str | None, _ARGUMENT]


def named_sessions(store: "SessionStore", keys: Sequence[str]) -> list["SessionRecord"]:
    """The sessions meant; all are looked up, so that a typo changes nothing."""
    return [store.find(key, unusable=True) for key in keys]


def named_or_put_aside(store: "SessionStore", key: str | None) -> "SessionRecord":
    """The session meant, or where there is none of that id or name, one that was put aside.

    Raises:
        SessionError: as `SessionStore.find`.
    """
    try:
        return store.find(key, unusable=True)
    except SessionError:
        aside = [r for r in store.put_aside() if key and (r.name == key or r.id.startswith(key))]
        if len(aside) != 1:
            raise
        return aside[0]


def describe(record: "SessionRecord") -> dict[str, Any]:
    """A session as JSON."""
    return {
        "id": record.id,
        "name": record.name,
        "created": record.created,
        "used": _time(record.used_s),
        "complete": record.complete,
        "state": record.state,
        "context_tokens": record.context_tokens,
        "tokens_done": record.tokens_done,
        "bytes": record.num_bytes,
        "model": record.model,
        "method": record.method,
        "kept_ratio": record.kept_ratio,
        "turns": len(record.extra.get("turns", ())),
        "inputs": [dict(entry) for entry in record.inputs],
        "path": record.path,
    }


def session_store(settings: Settings) -> "SessionStore":
    from hipcli.engine.sessions import SessionStore

    return SessionStore(settings.cache_root)


def _time(seconds: float) -> str:
    """Seconds since the epoch as a manifest writes its times."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_table(records: Sequence["SessionRecord"], width: int | None = None) -> str:
    """Sessions, a row each; `width` of the terminal that shows it, None if none does."""
    header = ("ID", "NAME", "USED", "TOKENS", "SIZE", "STATE", "INPUTS")
    rows = [
        (
            record.id,
            record.name or "-",
            _time(record.used_s),
            _tokens(record),
            formatting.size(record.num_bytes),
            _state(record),
            about(record),
        )
        for record in records
    ]
    return formatting.table(header, rows, right=(3, 4), width=width)


def _state(record: "SessionRecord") -> str:
    return record.state if record.kept_ratio == 1 else f"{record.state}, {record.kept_ratio:.0%}"


def about(record: "SessionRecord") -> str:
    """What a session is about: its first documents."""
    names = [entry["name"] for entry in record.inputs]
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _tokens(record: "SessionRecord") -> str:
    total = formatting.count(record.context_tokens)
    if record.tokens_done == record.context_tokens:
        return total
    return f"{formatting.count(record.tokens_done)} of {total}"


def as_page(described: dict[str, Any]) -> str:
    facts = {key: value for key, value in described.items() if key != "inputs"}
    inputs = [
        f"input: {entry['name']} (sha256 {entry['sha256'][:12]})" for entry in described["inputs"]
    ]
    return formatting.facts(facts) + "".join(formatting.one_line(line) + "\n" for line in inputs)
