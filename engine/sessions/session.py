"""One session on disk while it is being built or read.

Files of a folder `<key>`: `manifest.json`, `tokens.i32`, `kv/NNN.pages`, `index/NNN.bounds`.
While it is built the folder is called `<key>.partial` and `progress.json` says how many tokens are
done; the finished folder appears by one rename, so it is whole or not there.
"""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.manifest import TOKENS, Manifest, read_tokens, write_json
from hipcli.engine.store.pages import KVStore, layer_files, num_pages

PROGRESS = "progress.json"
PARTIAL_SUFFIX = ".partial"

# Pages reach the disk by themselves within seconds; a power cut may take what is younger than this.
SYNC_INTERVAL_S = 15.0


def boot_id() -> str:
    """Changes when the machine starts again; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class Session:
    """A session's folder, complete or being built.

    Args:
        folder: the folder, whose name ends in `.partial` until it is finished.
        manifest: what it holds.
        tokens_done: tokens whose pages are there.
    """

    def __init__(self, folder: Path, manifest: Manifest, tokens_done: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens_done = tokens_done
        self._synced_tokens = tokens_done
        self._synced_at = time.monotonic()

    @property
    def id(self) -> str:
        """The short id shown to users."""
        return self.manifest.key[:12]

    @property
    def complete(self) -> bool:
        """True if the whole context is there."""
        return not self.folder.name.endswith(PARTIAL_SUFFIX)

    @classmethod
    def create(cls, folder: Path, manifest: Manifest, context_ids: np.ndarray) -> "Session":
        """A new partial session with room for all its pages.

        Raises:
            OSError: the disk is full or cannot be written; nothing is left behind.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        try:
            for part in ("kv", "index"):
                (folder / part).mkdir(mode=0o700)
            _write_private(folder / TOKENS, context_ids.astype("<i4").tobytes())
            pages = num_pages(manifest.context_tokens)
            for layer in range(manifest.num_layers):
                page_file, index_file = layer_files(folder, layer)
                _allocate(page_file, pages * manifest.page_bytes)
                _allocate(index_file, pages * manifest.summary_bytes)
            manifest.write(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        session = cls(folder, manifest, 0)
        session.checkpoint(0)
        return session

    @classmethod
    def open(cls, folder: Path) -> "Session":
        """The session in `folder`, after a check of what can be checked without reading it all.

        Raises:
            SessionError: files are missing, short, or do not belong together.
        """
        manifest = Manifest.read(folder)
        pages = num_pages(manifest.context_tokens)
        for layer in range(manifest.num_layers):
            sizes = (pages * manifest.page_bytes, pages * manifest.summary_bytes)
            for file, size in zip(layer_files(folder, layer), sizes, strict=True):
                if not file.is_file() or file.stat().st_size != size:
                    raise SessionError(f"session {folder.name}: {file.name} is missing or cut")
        if not folder.name.endswith(PARTIAL_SUFFIX):
            return cls(folder, manifest, manifest.context_tokens)
        try:
            progress = json.loads((folder / PROGRESS).read_text("utf-8"))
            same_boot = progress["boot_id"] == boot_id()
            done = progress["tokens_done" if same_boot else "synced_tokens"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SessionError(f"session {folder.name} has no progress: {error}") from None
        if not isinstance(done, int) or not 0 <= done <= manifest.context_tokens:
            raise SessionError(f"session {folder.name} has a damaged progress record")
        return cls(folder, manifest, done)

    def context_ids(self) -> np.ndarray:
        """Token ids of the context, int32 [N]; raises SessionError as `read_tokens` does."""
        return read_tokens(self.folder, self.manifest.tokens_sha256)

    def map_into(self, store: KVStore) -> None:
        """Lay the files under the store: written through while partial, read-only when complete."""
        file_tokens = self.manifest.context_tokens
        store.map_session(self.folder, file_tokens, self.tokens_done, shared=not self.complete)

    def checkpoint(self, tokens_done: int) -> None:
        """Record that the pages of `tokens_done` tokens are written.

        A killed process loses nothing: pages are in the system's cache. After a power cut only
        what was synced counts.
        """
        self.tokens_done = tokens_done
        if time.monotonic() - self._synced_at > SYNC_INTERVAL_S:
            self._sync_pages()
        progress = {
            "tokens_done": tokens_done,
            "synced_tokens": self._synced_tokens,
            "boot_id": boot_id(),
        }
        write_json(self.folder / PROGRESS, progress, sync=False)

    def finish(self) -> None:
        """Make the partial session a complete one."""
        self._sync_pages()
        final = self.folder.with_name(self.folder.name.removesuffix(PARTIAL_SUFFIX))
        (self.folder / PROGRESS).unlink()
        if final.exists():
            shutil.rmtree(final)
        os.rename(self.folder, final)
        _sync_folder(final.parent)
        self.folder = final

    def _sync_pages(self) -> None:
        for layer in range(self.manifest.num_layers):
            for file in layer_files(self.folder, layer):
                fd = os.open(file, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        self._synced_tokens, self._synced_at = self.tokens_done, time.monotonic()


def _write_private(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _allocate(path: Path, num_bytes: int) -> None:
    """A file of `num_bytes` whose blocks are there: a full disk shows now, not as SIGBUS later."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, num_bytes)
        else:
            os.ftruncate(fd, num_bytes)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
