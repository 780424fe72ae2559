"""Sessions written to a cache without a model: what `hip sessions` works on."""

import hashlib
from pathlib import Path

import numpy as np

from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.identity import identity_key
from hipcli.engine.sessions.manifest import PROGRESS, TOKENS, WORTH, Manifest, write_sealed
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks, table_bytes
from hipcli.engine.store.layout import checksum_file, layer_files

PAGE_BYTES, SUMMARY_BYTES, LAYERS, PAGES = 256, 32, 2, 3


def save(
    cache: Path, label: str, name: str = "", *, partial: bool = False, sink_tokens: int = 256
) -> Manifest:
    """A session of three pages of made-up bytes; `label` names its one document."""
    store = SessionStore(cache)
    store.prepare()
    method = {"name": "hip", "sink_tokens": sink_tokens, "window_tokens": 0}
    identity = {"model_name": "toy", "method": method, "inputs": [[label, "00"]]}
    tokens = np.arange(PAGES * 64, dtype="<i4").tobytes()
    key = identity_key(identity)
    manifest = Manifest(
        key=key,
        name=name,
        created="2026-01-02T03:04:05Z",
        context_tokens=PAGES * 64,
        tokens_sha256=hashlib.sha256(tokens).hexdigest(),
        page_bytes=PAGE_BYTES,
        summary_bytes=SUMMARY_BYTES,
        num_layers=LAYERS,
        seed=int(key[:8], 16),
        identity=identity,
        inputs=[{"name": label, "sha256": "00"}],
    )
    folder = store.folder(key, partial=partial)
    for part in ("kv", "index"):
        (folder / part).mkdir(parents=True)
    (folder / TOKENS).write_bytes(tokens)
    _write_pages(folder, manifest.seed)
    write_sealed(folder / WORTH, {"worth": [0.0, 2.0, 1.0]}, Disk())
    manifest.write(folder, Disk())
    if partial:
        progress = {"tokens_done": 64, "synced_tokens": 64, "boot_id": ""}
        write_sealed(folder / PROGRESS, progress, Disk())
    store.touch(folder)
    return manifest


def _write_pages(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    checksum_file(folder).write_bytes(bytes(table_bytes(PAGES, LAYERS)))
    checks = PageChecks(checksum_file(folder), PAGES, LAYERS, seed, writable=True)
    for layer in range(LAYERS):
        page_file, index_file = layer_files(folder, layer)
        pages = random.integers(0, 256, (PAGES, 2, PAGE_BYTES // 2), dtype=np.uint8)
        index = random.integers(0, 256, (PAGES, SUMMARY_BYTES), dtype=np.uint8)
        page_file.write_bytes(pages.tobytes())
        index_file.write_bytes(index.tobytes())
        checks.record(KEYS, layer, 0, pages[:, 0])
        checks.record(VALUES, layer, 0, pages[:, 1])
        checks.record(SUMMARY, layer, 0, index)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
