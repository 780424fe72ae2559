"""What of a saved session no longer holds: files that changed, settings that differ."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import SessionError
from hipcli.terminal.report import warning_row

if TYPE_CHECKING:
    from hipcli.documents import Corpus, ReadOptions
    from hipcli.engine.sessions import SessionRecord
    from hipcli.prompts import DocumentSpan

_STDIN = "-"
# New files of a folder that a warning names.
_MOST_NAMED = 5
# What a shell's <(command) names is another stream, or none, the next time.
_DESCRIPTORS = ("/dev/", "/proc/")
# Other values of these settings make keys and values anew.
SHAPING = (
    "model",
    "dtype",
    "kv_dtype",
    "weights",
    "method",
    "budget_tokens",
    "window_tokens",
    "sink_tokens",
)


def differing(record: "SessionRecord", values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Warnings about settings of a command line that the session was not read with.

    Args:
        record: the session.
        values: settings by name, those of the session where the command line has none.
    """
    kept = record.extra.get("settings", {})
    names = [name for name in kept if name in values and values[name] != kept[name]]
    changes = [f"{name} {kept[name]} -> {values[name]}" for name in names if name in SHAPING]
    rows = []
    if changes:
        what = f"other settings than session {record.id} was read with ({', '.join(changes)})"
        rows.append(warning_row("other_session", f"{what}: its text is read anew for them"))
    if "system" in names:
        what = f"session {record.id} keeps the system prompt it was read with"
        rows.append(warning_row("system_kept", what))
    return rows


def changed(documents: Sequence["DocumentSpan"]) -> list[str]:
    """Names of the documents whose files hold other bytes now, in order.

    A file that is gone (see `gone`), or was piped in, has not changed: the session is all that is
    left of it.
    """
    return [
        entry.name
        for entry in documents
        if _is_file(entry.path) and _sha256(entry.path) not in ("", entry.sha256)
    ]


def gone(documents: Sequence["DocumentSpan"]) -> list[str]:
    """Names of the documents whose files are not there any more, in order."""
    return [
        entry.name
        for entry in documents
        if entry.path != _STDIN
        and not entry.path.startswith(_DESCRIPTORS)
        and not os.path.lexists(entry.path)
    ]


def folders_of(names: Sequence[str]) -> dict[str, str]:
    """Those of the sources typed that are folders, and where they are."""
    return {name: os.path.abspath(name) for name in names if os.path.isdir(name)}


def appeared(record: "SessionRecord", options: "ReadOptions") -> list[dict[str, str]]:
    """A warning about files that have come into the session's folders since they were read."""
    from hipcli.documents import folder_names

    known = {row["path"] for row in record.extra.get("inputs", ())}
    new = [
        name
        for source, path in record.extra.get("folders", {}).items()
        if os.path.isdir(path)
        for name in folder_names(source, path, options)
        if name not in known
    ]
    if not new:
        return []
    more = f" and {len(new) - _MOST_NAMED:,} more" if len(new) > _MOST_NAMED else ""
    what = f"{', '.join(new[:_MOST_NAMED])}{more} came into the folder since it was read"
    hint = "the session is without; ask about the folder itself to read them"
    return [warning_row("source_new", f"{what}; {hint}")]


def read_again(documents: Sequence["DocumentSpan"], options: "ReadOptions") -> "Corpus":
    """Read the documents of a session again, under the names that the model knows.

    Raises:
        SessionError: one of them is not a file that can be read again.
        InputError: none of them gives text any more.
    """
    from hipcli.documents import read_again as read

    for entry in documents:
        if not _is_file(entry.path):
            raise SessionError(
                f"the session must be read again, and {entry.name} is not there to be read",
                "ask about the documents as they are now; --stale-ok keeps a changed session",
            )
    return read([(entry.name, entry.path) for entry in documents], options)


def _is_file(path: str) -> bool:
    return path != _STDIN and not path.startswith(_DESCRIPTORS) and os.path.isfile(path)


def _sha256(path: str) -> str:
    """Digest of a file's bytes; empty if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()
