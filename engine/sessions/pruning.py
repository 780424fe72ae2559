"""A pruned session: a session of its own with some of another one's pages. No torch here."""

import dataclasses
import shutil
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.companion import has_companion
from hipcli.engine.sessions.disk import NEW_SUFFIX, Disk
from hipcli.engine.sessions.identity import identity_key
from hipcli.engine.sessions.kept import as_runs, chosen_pages, from_runs, kept_name
from hipcli.engine.sessions.manifest import (
    TOKENS,
    WORTH,
    Manifest,
    read_tokens,
    read_worth,
    write_sealed,
)
from hipcli.engine.sessions.record import SessionRecord
from hipcli.engine.sessions.store import SessionStore
from hipcli.engine.store.checks import table_bytes
from hipcli.engine.store.layout import checksum_file, layer_files, num_pages

# Pages whose bytes stand next to each other in a file: [first, end).
_Rows = list[tuple[int, int]]


def prune(store: SessionStore, record: SessionRecord, ratio: float) -> SessionRecord | None:
    """Put a session with fewer pages in the place of another one.

    Args:
        store: the sessions.
        record: a complete session, in full or pruned already.
        ratio: of the pages between sinks and window to keep, above 0 and below 1.

    Returns:
        The pruned session; None if the session keeps no more than that as it is.

    Raises:
        SessionError: the session is not complete, is damaged, or cannot be read.
        OSError: there is no room for the pages; the session stays as it was.
    """
    if not record.complete:
        raise SessionError(
            f"session {record.id} is not read to its end yet", "ask it once, then prune it"
        )
    if has_companion(record.path):
        raise SessionError(
            f"session {record.id} keeps more than pages, as its method needs all of it",
            "ask with --method hip, whose sessions can be pruned",
        )
    store.verify(record)
    manifest = Manifest.read(record.path)
    key = identity_key({**manifest.identity, "keep": kept_name(ratio)})
    if key != manifest.key and store.folder(key, partial=False).exists():
        raise SessionError(
            f"session {store.find(key).id} keeps that part of the same documents already",
            f"hip sessions rm {record.id} removes this one",
        )
    store.prepare()
    folder = write_pruned(store, record.path, manifest, ratio)
    if folder is None:
        return None
    used = record.path.stat().st_mtime_ns
    store.remove(record)
    store.disk.touch(folder, used)
    return store.find(Manifest.read(folder).key)


def write_pruned(
    store: SessionStore, source: Path, manifest: Manifest, ratio: float
) -> Path | None:
    """Write the session that keeps `ratio` of the pages of the one in `source`, which stays.

    Returns:
        Its folder; None if there is nothing to leave out.

    Raises:
        DamagedSessionError: the record of the pages' worth cannot be read.
        OSError: the disk does not take it; nothing is left behind.
    """
    worth = read_worth(source)
    rows, kept = _rows_to_keep(manifest, worth, ratio)
    if len(rows) == num_pages(manifest.stored_tokens):
        return None
    identity = {**manifest.identity, "keep": kept_name(ratio)}
    pruned = dataclasses.replace(
        manifest,
        key=identity_key(identity),
        identity=identity,
        kept=as_runs(kept),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    folder = store.folder(pruned.key, partial=False)
    new = folder.with_name(folder.name + NEW_SUFFIX)
    with store.lock(pruned.key):
        try:
            shutil.rmtree(new, ignore_errors=True)
            for part in ("kv", "index"):
                store.disk.make_folder(new / part)
            ids = read_tokens(source, manifest.tokens_sha256)
            store.disk.write(new / TOKENS, ids.astype("<i4").tobytes())
            write_sealed(new / WORTH, {"worth": worth}, store.disk)
            _copy_pages(store.disk, source, new, manifest, rows)
            pruned.write(new, store.disk)
            for written in (new / "kv", new / "index", new):
                store.disk.sync(written)
            if folder.exists():
                store.disk.remove(folder)
            store.disk.rename(new, folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return folder


def _rows_to_keep(
    manifest: Manifest, worth: list[float], ratio: float
) -> tuple[np.ndarray, np.ndarray]:
    """Places in the files of the pages to keep, and which pages of the context they are."""
    method = manifest.identity.get("method", {})
    wanted = chosen_pages(worth, manifest.context_tokens, method, ratio)
    if not manifest.kept:
        return wanted, wanted
    # Pages that went before do not come back.
    there = from_runs(manifest.kept)
    rows = np.flatnonzero(np.isin(there, wanted))
    return rows, there[rows]


def _copy_pages(
    disk: Disk, source: Path, target: Path, manifest: Manifest, rows: np.ndarray
) -> None:
    """Pages, summaries and checksums; a page's checksum is good wherever the page stands."""
    runs = [(first, end) for first, end in as_runs(rows)]
    row_bytes = table_bytes(1, manifest.num_layers)
    _copy_rows(disk, checksum_file(source), checksum_file(target), runs, row_bytes)
    sizes = (manifest.page_bytes, manifest.summary_bytes)
    for layer in range(manifest.num_layers):
        files = zip(layer_files(source, layer), layer_files(target, layer), strict=True)
        for (page_file, new_file), size in zip(files, sizes, strict=True):
            _copy_rows(disk, page_file, new_file, runs, size)


def _copy_rows(disk: Disk, source: Path, target: Path, runs: _Rows, row_bytes: int) -> None:
    disk.allocate(target, row_bytes * sum(end - first for first, end in runs))
    disk.gather(
        source, target, [(first * row_bytes, (end - first) * row_bytes) for first, end in runs]
    )
    disk.sync(target)
