"""The manifest of a session: what it holds and for whom. JSON, never pickle."""

import dataclasses
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.identity import FORMAT_VERSION

if TYPE_CHECKING:
    import numpy as np

MANIFEST = "manifest.json"
TOKENS = "tokens.i32"


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
        identity: the record behind `key`.
        inputs: per document its shown name and content hash, in order.
        extra: what the caller keeps beside the context (where documents and pages begin).
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
    identity: dict[str, Any]
    inputs: list[dict[str, str]]
    extra: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The manifest in `folder`.

        Raises:
            SessionError: it is missing, damaged, or of a newer format.
        """
        try:
            data = json.loads((folder / MANIFEST).read_text("utf-8"))
        except FileNotFoundError:
            raise SessionError(f"session {folder.name} has no manifest") from None
        except (OSError, ValueError) as error:
            raise SessionError(f"session {folder.name} cannot be read: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("format_version"), int):
            raise SessionError(f"session {folder.name} has a damaged manifest")
        if data["format_version"] > FORMAT_VERSION:
            raise SessionError(
                f"session {folder.name} has format {data['format_version']}, newer than"
                f" {FORMAT_VERSION}",
                "use the newer hip that wrote it, or remove it with: hip sessions rm",
            )
        names = {f.name for f in dataclasses.fields(cls)}
        if set(data) != names:
            raise SessionError(f"session {folder.name} has a damaged manifest")
        return cls(**data)

    def write(self, folder: Path) -> None:
        """Write atomically into `folder`."""
        write_json(folder / MANIFEST, dataclasses.asdict(self))


def read_tokens(folder: Path, sha256: str) -> "np.ndarray":
    """Token ids of the context in `folder`, int32 [N].

    Raises:
        SessionError: the file is missing, cut or changed.
    """
    # Listing sessions needs no numpy and should not wait for it.
    import numpy as np

    try:
        data = (folder / TOKENS).read_bytes()
    except OSError as error:
        raise SessionError(f"session {folder.name} has no token ids: {error}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SessionError(f"session {folder.name}: its token ids are damaged")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)


def write_json(path: Path, data: Any, *, sync: bool = True) -> None:
    """Replace `path` by `data` as JSON: a reader sees the old file or the new one, never half."""
    fd, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(data, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
