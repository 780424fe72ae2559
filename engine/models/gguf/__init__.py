"""GGUF files: each is converted once to a safetensors folder in the model cache.

Transformers' reader takes half a minute for a small model and gives up the quantized form anyway;
the copy loads in a moment. Only the copy is kept by hip; the file named by the user is not touched.
The conversion runs in a child process: it needs as much memory as the model, prints bars of its
own, and must stop when the user says so.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from hipcli.engine.errors import ModelError
from hipcli.engine.models.folders import ModelFolder, read_manifest, write_manifest
from hipcli.engine.module_command import SAFE_PATH, listened_to

# (phase, done_bytes, total_bytes); phases: wait, download, check, convert.
Progress = Callable[[str, int, int], None]

_CHILD = (
    f"{SAFE_PATH}; from hipcli.engine.models.gguf.child import main; sys.exit(main(sys.argv[1:]))"
)
_HEAD_BYTES = 16 * 2**20
_BLOCK_BYTES = 64 * 2**10
_BLOCKS = 64


def no_progress(phase: str, done_bytes: int, total_bytes: int) -> None:
    """Report nothing."""


def file_digest(path: Path) -> str:
    """SHA-256 (hexadecimal) of a GGUF file's size, head (all its metadata, as a rule), and blocks
    evenly spaced to its end; of small files every byte.

    Raises:
        ModelError: the file cannot be read or is not GGUF.
    """
    try:
        size = path.stat().st_size
        state = hashlib.sha256(f"hip-gguf-1 {size}".encode())
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head[:4] != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file.", hint="Download it again.")
            state.update(head)
            rest = size - len(head)
            gap = max(rest // _BLOCKS, 1)
            if rest <= _BLOCKS * _BLOCK_BYTES:
                state.update(file.read())
            else:
                for start in range(len(head), size, gap):
                    file.seek(min(start, size - _BLOCK_BYTES))
                    state.update(file.read(_BLOCK_BYTES))
                file.seek(size - _BLOCK_BYTES)
                state.update(file.read(_BLOCK_BYTES))
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    return state.hexdigest()


def converted(path: Path, name: str, models_dir: Path, progress: Progress) -> ModelFolder:
    """The safetensors copy of a GGUF file, made now if there is none.

    Raises:
        ModelError: the file is damaged, of an architecture hip does not run, or the cache folder
            cannot be written.
    """
    digest = file_digest(path)
    revision = digest[:16]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip(".-") or "model"
    target = models_dir / f"{stem[:80]}-{revision}"
    with build_folder(target, revision, progress) as part:
        if part is not None:
            convert(path, part, progress)
            write_manifest(
                part, name=target.name, source=path.name, sha256=digest, revision=revision
            )
    return ModelFolder(name, target, revision, "gguf")


@contextlib.contextmanager
def build_folder(target: Path, revision: str, progress: Progress) -> Iterator[Path | None]:
    """A temporary folder that becomes `target` when the block ends well; None when `target` is
    there already with that revision in its note. One builder at a time across processes; the
    others wait and find it done.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    if _is_built(target, revision):
        yield None
        return
    with _lock(target, progress):
        if _is_built(target, revision):
            yield None
            return
        # What a killed builder left; nobody else builds here, since we hold the lock.
        for stale in target.parent.glob(f".{target.name}.part-*"):
            shutil.rmtree(stale, ignore_errors=True)
        part = target.parent / f".{target.name}.part-{os.getpid()}"
        try:
            part.mkdir()
            yield part
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        except OSError as error:
            raise _cannot_write(target.parent, error) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _is_built(target: Path, revision: str) -> bool:
    model = read_manifest(target)
    return model is not None and model.revision == revision


@contextlib.contextmanager
def _lock(target: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model folder; the system frees it when its holder dies."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(target.parent / f".{target.name}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            progress("wait", 0, 0)
            lock.acquire()
    except OSError as error:
        raise _cannot_write(target.parent, error) from error
    try:
        yield
    finally:
        lock.release()


def convert(source: Path, target: Path, progress: Progress) -> None:
    """Write `source` as a safetensors model into the folder `target`.

    Raises:
        ModelError: with the child's own words.
    """
    total = source.stat().st_size
    progress("convert", 0, total)
    command = [sys.executable, "-c", _CHILD, str(source.resolve()), str(target)]
    child = listened_to(command)
    failure: dict[str, str] = {}
    last = ""
    try:
        for line in child.stdout or ():
            message = _message(line)
            last = line.strip() or last
            if "done" in message:
                progress("convert", int(total * message["done"]), total)
            elif "error" in message:
                failure = message
        child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    if child.returncode:
        raise ModelError(
            failure.get("error", f"Converting {source.name} failed: {last or child.returncode}"),
            hint=failure.get("hint", "Is there enough memory and disk space for the model?"),
        )
    progress("convert", total, total)


def _message(line: str) -> dict:
    """A line of the child as JSON; anything else a library prints is no message."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _cannot_write(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"Cannot write to the model cache {folder}: {error.strerror or error}.",
        hint="Choose another folder with HIP_CACHE_DIR, or free some disk space.",
    )
