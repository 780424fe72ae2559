"""Documents of a saved session that have changed since they were read."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hipcli.engine.errors import SessionError

if TYPE_CHECKING:
    from hipcli.documents import Corpus, ReadOptions
    from hipcli.prompts import DocumentSpan

_STDIN = "-"
# What a shell's <(command) names is another stream, or none, the next time.
_DESCRIPTORS = ("/dev/", "/proc/")


def changed(documents: Sequence["DocumentSpan"]) -> list[str]:
    """Names of the documents whose files hold other bytes now, in order.

    A file that is gone, or was piped in, has not changed: the session is all that is left of it.
    """
    return [
        entry.name
        for entry in documents
        if _is_file(entry.path) and _sha256(entry.path) not in ("", entry.sha256)
    ]


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
