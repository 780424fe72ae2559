"""The manifest of a session: what it holds and for whom. JSON, never pickle."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import DamagedSessionError, SessionError
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.identity import FORMAT_VERSION
from hipcli.engine.sessions.kept import Runs
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.json"
TOKENS = "tokens.i32"
WORTH = "worth.json"
PROGRESS = "progress.json"
PARTIAL_SUFFIX = ".partial"
DIGEST = "digest"


class NewerSessionError(SessionError):
    """A session of a newer format than this version knows."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a session's folder says of itself.

    Args:
        key: the identity, 64 hex digits; the folder's name is its start.
        name: given by the user, may be empty.
        created: UTC, ISO 8601.
        context_tokens: tokens of the finished context.
        tokens_sha256: of the token ids as little-endian int32.
        page_bytes, summary_bytes, num_layers: layout of the files.
        seed: of the pages' checksums.
        identity: the record behind `key`.
        inputs: per document its shown name and content hash, in order.
        extra: what the caller keeps beside the context (where documents and pages begin).
        kept: of a pruned session the pages of the context that are there, as runs [first, end);
            empty when all are.
        format_version: of the files.
    """

    key: str
    name: str
    created: str
    context_tokens: int
    tokens_sha256: str
    page_bytes: int
    summary_bytes: int
    num_layers: int
    seed: int
    identity: dict[str, Any]
    inputs: list[dict[str, str]]
    extra: dict[str, Any] = field(default_factory=dict)
    kept: Runs = field(default_factory=list)
    format_version: int = FORMAT_VERSION

    @property
    def stored_tokens(self) -> int:
        """Tokens whose keys and values the finished session has."""
        if not self.kept:
            return self.context_tokens
        pages = sum(end - first for first, end in self.kept)
        # The last page is always kept; it may be half filled.
        return self.context_tokens - (num_pages(self.context_tokens) - pages) * PAGE_TOKENS

    @property
    def kept_ratio(self) -> float:
        """The part of the context's pages that is there."""
        return num_pages(self.stored_tokens) / max(num_pages(self.context_tokens), 1)

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in `folder`.

        Raises:
            NewerSessionError: it is of a newer format.
            DamagedSessionError: it is missing, damaged, or of an older format.
        """
        data = read_sealed(folder / MANIFEST)
        version = data.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise NewerSessionError(
                f"session {folder.name[:12]} has format {version}, newer than {FORMAT_VERSION}",
                "use the newer hip that wrote it, or remove it with: hip sessions rm",
            )
        names = {f.name for f in dataclasses.fields(cls)}
        if set(data) != names or version != FORMAT_VERSION:
            raise DamagedSessionError(f"session {folder.name[:12]} is of another version of hip")
        return cls(**data)

    def write(self, folder: Path, disk: Disk) -> None:
        """Write atomically into `folder`."""
        write_sealed(folder / MANIFEST, dataclasses.asdict(self), disk)


def read_tokens(folder: Path, sha256: str) -> "np.ndarray":
    """Token ids of the context in `folder`, int32 [N].

    Raises:
        DamagedSessionError: the file is missing, cut or changed.
    """
    # Listing sessions needs no numpy and should not wait for it.
    import numpy as np

    try:
        data = (folder / TOKENS).read_bytes()
    except OSError as error:
        raise DamagedSessionError(f"session {folder.name[:12]} has no token ids: {error}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DamagedSessionError(f"session {folder.name[:12]}: its token ids are damaged")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)


def read_worth(folder: Path) -> list[float]:
    """The worth of each page of the context in `folder` (`engine/reading/worth.py`).

    Raises:
        DamagedSessionError: the record is missing, or not what was written.
    """
    worth = read_sealed(folder / WORTH).get("worth")
    if not isinstance(worth, list):
        raise DamagedSessionError(f"session {folder.name[:12]} has no record of its pages' worth")
    return worth


def write_sealed(path: Path, data: dict[str, Any], disk: Disk, *, sync: bool = True) -> None:
    """Replace `path` by `data` as JSON with a digest of itself."""
    # As it will be read: keys are strings, tuples are lists.
    data = json.loads(json.dumps(data))
    disk.write(path, json.dumps({**data, DIGEST: _digest(data)}).encode("ascii"), sync=sync)


def read_sealed(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, without its digest.

    Raises:
        DamagedSessionError: it is missing, or not what was written.
    """
    try:
        data = json.loads(path.read_bytes())
        if isinstance(data, dict) and data.pop(DIGEST, None) == _digest(data):
            return data
        reason = "it was changed"
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
    where = f"{path.name} of session {path.parent.name[:12]}"
    raise DamagedSessionError(f"{where} cannot be used: {reason}")


def _digest(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
