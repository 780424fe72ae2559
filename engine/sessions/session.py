"""One session on disk while it is being built or read.

Files of a folder `<key>`: `manifest.json`, `tokens.i32`, `checksums.u32`, `kv/NNN.pages`,
`index/NNN.bounds`, `worth.json`. While it is built the folder is called `<key>.partial` and
`progress.json` says how many tokens are done. Both names appear by a rename of a folder that is
whole, so at any moment a session is there or it is not.
"""

import contextlib
import dataclasses
import shutil
import time
from pathlib import Path

import numpy as np

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.sessions.disk import NEW_SUFFIX, Disk
from hipcli.engine.sessions.kept import from_runs
from hipcli.engine.sessions.locks import Lease
from hipcli.engine.sessions.manifest import (
    PARTIAL_SUFFIX,
    PROGRESS,
    TOKENS,
    WORTH,
    Manifest,
    read_sealed,
    read_tokens,
    write_sealed,
)
from hipcli.engine.sessions.verify import compare_pages
from hipcli.engine.store.checks import table_bytes
from hipcli.engine.store.layout import checksum_file, layer_files, num_pages
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore

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
        disk: makes all changes.
        lease: keeps the folder from being removed while this object lives.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tokens_done: int,
        disk: Disk,
        lease: Lease | None = None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokens_done = tokens_done
        self._disk = disk
        self._lease = lease
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
    def create(
        cls,
        folder: Path,
        manifest: Manifest,
        context_ids: np.ndarray,
        disk: Disk,
        prefix: "tuple[Session, int] | None" = None,
    ) -> "Session":
        """A new partial session with room for all its pages.

        Args:
            folder: of the partial session; not there yet.
            manifest: what it will hold.
            context_ids: int32 [N].
            disk: makes all changes.
            prefix: a session, and how many tokens to take over from it, whole pages.

        Raises:
            OSError: the disk is full or cannot be written; nothing is left behind.
        """
        new = folder.with_name(folder.name.removesuffix(PARTIAL_SUFFIX) + NEW_SUFFIX)
        shutil.rmtree(new, ignore_errors=True)
        pages = num_pages(manifest.context_tokens)
        try:
            for part in ("kv", "index"):
                disk.make_folder(new / part)
            disk.write(new / TOKENS, context_ids.astype("<i4").tobytes())
            disk.allocate(checksum_file(new), table_bytes(pages, manifest.num_layers))
            for layer in range(manifest.num_layers):
                page_file, index_file = layer_files(new, layer)
                disk.allocate(page_file, pages * manifest.page_bytes)
                disk.allocate(index_file, pages * manifest.summary_bytes)
            manifest.write(new, disk)
            session = cls(new, manifest, 0, disk)
            if prefix is not None:
                session._take_over(*prefix)
            session.checkpoint(session.tokens_done)
            disk.rename(new, folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        session.folder = folder
        session._lease = Lease(folder)
        return session

    def _take_over(self, donor: "Session", tokens: int) -> None:
        """Copy the pages of the first tokens and all that belongs to them."""
        manifest, pages = self.manifest, tokens // PAGE_TOKENS
        sizes = (pages * manifest.page_bytes, pages * manifest.summary_bytes)
        for layer in range(manifest.num_layers):
            files = zip(
                layer_files(donor.folder, layer), layer_files(self.folder, layer), strict=True
            )
            for (source, target), size in zip(files, sizes, strict=True):
                self._disk.copy(source, target, size)
        table = (checksum_file(donor.folder), checksum_file(self.folder))
        self._disk.copy(*table, table_bytes(pages, manifest.num_layers))
        self.tokens_done = tokens

    @classmethod
    def open(cls, folder: Path, disk: Disk) -> "Session":
        """The session in `folder`, after a check of what can be checked without reading it all.

        Raises:
            SessionError: it is of a newer format.
            DamagedSessionError: files are missing, short, or do not belong together.
        """
        try:
            lease = Lease(folder)
        except OSError as error:
            raise DamagedSessionError(f"session {folder.name[:12]} is gone: {error}") from None
        manifest = Manifest.read(folder)
        for file, size in expected_files(folder, manifest):
            if not file.is_file() or file.stat().st_size != size:
                raise DamagedSessionError(
                    f"session {folder.name[:12]}: {file.name} is missing or cut"
                )
        if not folder.name.endswith(PARTIAL_SUFFIX):
            return cls(folder, manifest, manifest.context_tokens, disk, lease)
        progress = read_sealed(folder / PROGRESS)
        same_boot = progress.get("boot_id") == boot_id()
        done = progress.get("tokens_done" if same_boot else "synced_tokens")
        if not isinstance(done, int) or not 0 <= done <= manifest.context_tokens:
            raise DamagedSessionError(f"session {folder.name[:12]} has a damaged progress record")
        return cls(folder, manifest, done, disk, lease)

    def context_ids(self) -> np.ndarray:
        """Token ids of the context, int32 [N]; raises DamagedSessionError as `read_tokens` does."""
        return read_tokens(self.folder, self.manifest.tokens_sha256)

    def compare(self, tokens: int) -> None:
        """Compare the whole pages of the first tokens with their checksums.

        Raises:
            DamagedSessionError: something is not what was written.
        """
        compare_pages(self.folder, self.manifest, tokens // PAGE_TOKENS)

    def rename(self, name: str) -> None:
        """Give the session a name. Raises OSError."""
        if name != self.manifest.name:
            self.manifest = dataclasses.replace(self.manifest, name=name)
            self.manifest.write(self.folder, self._disk)

    def begin_at(self, tokens: int) -> None:
        """Forget what is done beyond `tokens`: it is about to be written again. Raises OSError."""
        if tokens < self.tokens_done:
            self._synced_tokens = min(self._synced_tokens, tokens)
            self.checkpoint(tokens)

    def map_into(self, store: KVStore) -> None:
        """Lay the files under the store: written through while partial, read-only when complete.

        Raises:
            DamagedSessionError: files went missing, or pages looked at are not what was written.
        """
        manifest = self.manifest
        try:
            store.map_session(
                self.folder,
                manifest.stored_tokens,
                manifest.stored_tokens if self.complete else self.tokens_done,
                manifest.seed,
                shared=not self.complete,
            )
        except OSError as error:
            raise DamagedSessionError(f"session {self.id} cannot be read: {error}") from None
        store.kept_pages = from_runs(manifest.kept) if manifest.kept else None

    def remember_worth(self, worth: list[float]) -> None:
        """Keep the worth of each page, for pruning. Raises OSError."""
        write_sealed(self.folder / WORTH, {"worth": worth}, self._disk)

    def checkpoint(self, tokens_done: int) -> None:
        """Record that the pages of `tokens_done` tokens, and their checksums, are written.

        A killed process loses nothing: pages are in the system's cache. After a power cut only
        what was synced counts.

        Raises:
            OSError: the record cannot be written; the former one holds.
        """
        self.tokens_done = tokens_done
        if time.monotonic() - self._synced_at > SYNC_INTERVAL_S:
            self.sync()
        progress = {
            "tokens_done": tokens_done,
            "synced_tokens": self._synced_tokens,
            "boot_id": boot_id(),
        }
        write_sealed(self.folder / PROGRESS, progress, self._disk, sync=False)

    def finish(self) -> None:
        """Make the partial session a complete one.

        Raises:
            OSError: the disk does not take it.
        """
        self.sync()
        for folder in (self.folder / "kv", self.folder / "index", self.folder):
            self._disk.sync(folder)
        final = self.folder.with_name(self.folder.name.removesuffix(PARTIAL_SUFFIX))
        if final.exists():
            self._disk.remove(final)
        self._disk.rename(self.folder, final)
        self.folder = final
        # From here on the session is complete; what is left does not matter to it.
        with contextlib.suppress(OSError):
            self._disk.sync(final.parent)
            (final / PROGRESS).unlink()

    def discard(self) -> None:
        """Remove the folder; a store that maps its files keeps them until it goes."""
        with contextlib.suppress(OSError):
            self._disk.remove(self.folder)

    def sync(self) -> None:
        """Wait until the pages would survive a power cut. Raises OSError."""
        for file, _ in expected_files(self.folder, self.manifest):
            self._disk.sync(file)
        self._synced_tokens, self._synced_at = self.tokens_done, time.monotonic()


def expected_files(folder: Path, manifest: Manifest) -> list[tuple[Path, int]]:
    """The files of pages, summaries and checksums in a session's folder, each with its size."""
    pages = num_pages(manifest.stored_tokens)
    files = [(checksum_file(folder), table_bytes(pages, manifest.num_layers))]
    for layer in range(manifest.num_layers):
        page_file, index_file = layer_files(folder, layer)
        files.append((page_file, pages * manifest.page_bytes))
        files.append((index_file, pages * manifest.summary_bytes))
    return files
