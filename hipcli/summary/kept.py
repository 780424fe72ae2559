"""Finished parts of a summary, kept with the session, so that an interrupted one can go on."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hipcli.engine.errors import SessionError
from hipcli.summary.wording import VERSION

FILE = "summary.json"


def digest(question: str, fields: Mapping[str, Any]) -> str:
    """The identity of an answer within its session: what was asked, of what, and how."""
    record = {"version": VERSION, "question": question, **fields}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


class KeptParts:
    """Answers by digest, in a file of the session's folder; in memory alone without one.

    Args:
        folder: of the session.
        fresh: forget what was kept.
    """

    def __init__(self, folder: Path | None, fresh: bool = False) -> None:
        self._path = None if folder is None else folder / FILE
        self._parts: dict[str, dict[str, Any]] = {}
        if self._path is not None and not fresh:
            # A file that is damaged is as good as none: its parts are asked for again.
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                content = json.loads(self._path.read_text("utf-8"))
                self._parts = {key: dict(part) for key, part in content["parts"].items()}

    @classmethod
    def of_session(cls, cache: Path | None, session: str, fresh: bool) -> "KeptParts":
        """Those of the session with that id, if there is one."""
        from hipcli.engine.sessions import SessionStore

        folder = None
        if cache is not None and session:
            with suppress(SessionError):
                folder = SessionStore(cache).find(session).path
        return cls(folder, fresh)

    def get(self, key: str) -> dict[str, Any] | None:
        """The part with that digest; None if it is not here or not whole."""
        part = self._parts.get(key)
        if part is None or not isinstance(part.get("text"), str):
            return None
        return part

    def put(self, key: str, part: Mapping[str, Any]) -> None:
        """Keeps a part; a disk that does not take it is no reason to stop."""
        from hipcli.engine.sessions.disk import Disk

        self._parts[key] = dict(part)
        if self._path is not None:
            with suppress(OSError):
                content = {"version": VERSION, "parts": self._parts}
                Disk().write(self._path, json.dumps(content).encode(), sync=False)
