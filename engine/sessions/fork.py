"""A branch of a saved session: another session over the very same files."""

import dataclasses
import secrets
import shutil
from datetime import datetime, timezone
from pathlib import Path

from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.disk import NEW_SUFFIX
from hipcli.engine.sessions.identity import identity_key
from hipcli.engine.sessions.manifest import MANIFEST, PROGRESS, Manifest
from hipcli.engine.sessions.record import SessionRecord
from hipcli.engine.sessions.store import SessionStore, require_name


def fork(store: SessionStore, record: SessionRecord, name: str = "") -> SessionRecord:
    """Branch a session. Its pages are linked, not copied, and go with the last who uses them.

    Args:
        store: the sessions.
        record: a complete session.
        name: of the branch; another session that has it loses it.

    Raises:
        SessionError: the session is not complete, or cannot be read; the name is no good.
        OSError: the branch cannot be written; nothing is left behind.
    """
    if not record.complete:
        raise SessionError(
            f"session {record.id} is not read to its end yet", "ask it once, then fork it"
        )
    require_name(name)
    parent = Manifest.read(record.path)
    identity = {**parent.identity, "branch": secrets.token_hex(8)}
    manifest = dataclasses.replace(
        parent,
        key=identity_key(identity),
        identity=identity,
        name=name,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    store.prepare()
    folder = store.folder(manifest.key, partial=False)
    new = folder.with_name(folder.name + NEW_SUFFIX)
    with store.lock(manifest.key):
        try:
            _link_files(store, record.path, new)
            manifest.write(new, store.disk)
            for written in (new / "kv", new / "index", new):
                store.disk.sync(written)
            store.disk.rename(new, folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    store.touch(folder)
    if name:
        store.claim_name(name, manifest.key)
    return store.find(manifest.key)


def _link_files(store: SessionStore, source: Path, target: Path) -> None:
    """All files of a complete session but the manifest, which each branch has of its own."""
    store.disk.make_folder(target)
    for path in sorted(source.rglob("*"), key=lambda path: (path.is_file(), path)):
        if path.is_dir():
            store.disk.make_folder(target / path.relative_to(source))
        elif path.name not in (MANIFEST, PROGRESS) and not path.name.endswith(NEW_SUFFIX):
            store.disk.link(path, target / path.relative_to(source))
