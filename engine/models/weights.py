"""The identity of weights: their content, not their path, name, date or file layout.

A saved session is valid for exactly the weights it was computed with. Reading many gigabytes at
every start would cost more than the answer, so of large models blocks of every tensor are read:
its beginning, its end, and blocks evenly spaced between. Anything that trains, merges or quantizes
a model changes those; a single edited number of a large tensor may escape (`full=True` sees it).
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hipcli.engine.errors import ModelError
from hipcli.engine.json_object import read_json
from hipcli.engine.models.folders import weight_files

# Models of no more than this are read in full.
FULL_BYTES = 64 * 2**20
_EDGE_BYTES = 64 * 2**10
_BLOCK_BYTES = 16 * 2**10
_BLOCKS = 8
# Entries of config.json that change nothing the model computes.
_COSMETIC = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def digest(folder: Path, full: bool = False) -> str:
    """SHA-256 (hexadecimal) over every tensor's name, dtype, shape and (sampled) bytes.

    The same tensors in other files, or split over more files, give the same digest.

    Raises:
        ModelError: a weight file is missing, truncated, or not safetensors.
    """
    files = weight_files(folder)
    full = full or sum(file.stat().st_size for file in files) <= FULL_BYTES
    lines: list[tuple[str, str, tuple[int, ...], int, str]] = []
    for path in files:
        tensors = read_header(path)
        with path.open("rb") as file:
            for tensor in tensors:
                content = _hash(file, tensor, full)
                lines.append((tensor.name, tensor.dtype, tensor.shape, tensor.num_bytes, content))
    record = ["hip-weights-1", "full" if full else "sampled", sorted(lines)]
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def config_digest(folder: Path) -> str:
    """SHA-256 (hexadecimal) of what `config.json` says about the computation: sizes, norms, rotary
    positions. With `digest` it identifies the model before its weights are loaded."""
    config = read_json(folder / "config.json")
    kept = {name: value for name, value in config.items() if name not in _COSMETIC}
    record = ["hip-config-1", kept]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_header(path: Path) -> list[_Tensor]:
    """The tensors of a safetensors file, checked against the file's size.

    Raises:
        ModelError: the file is truncated or not safetensors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        lead = file.read(8)
        if lead == b"version ":
            raise _damaged(path, "is a Git LFS pointer, not the weights themselves")
        length = struct.unpack("<Q", lead)[0] if len(lead) == 8 else size
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise _damaged(path, "is not a complete safetensors file")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            tensors = [
                _tensor(name, entry, 8 + length)
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(path, "has a damaged header") from error
    end = max((tensor.start + tensor.num_bytes for tensor in tensors), default=8 + length)
    if end != size:
        raise _damaged(path, f"has {size:,} bytes where its header says {end:,}")
    return tensors


def _tensor(name: str, entry: dict[str, Any], data_start: int) -> _Tensor:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end:
        raise ValueError(name)
    return _Tensor(
        name, str(entry["dtype"]), tuple(entry["shape"]), data_start + start, end - start
    )


def _damaged(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} {what}.", hint="Pull the model again, or restore the file.")


def _hash(file: BinaryIO, tensor: _Tensor, full: bool) -> str:
    state = hashlib.sha256()
    for offset, num_bytes in _spans(tensor.num_bytes, full):
        file.seek(tensor.start + offset)
        while num_bytes > 0:
            block = file.read(min(num_bytes, 2**20))
            if not block:
                break
            state.update(block)
            num_bytes -= len(block)
    return state.hexdigest()


def _spans(num_bytes: int, full: bool) -> Iterator[tuple[int, int]]:
    """(offset, length) of the bytes of a tensor that are read."""
    sampled = 2 * _EDGE_BYTES + _BLOCKS * _BLOCK_BYTES
    if full or num_bytes <= sampled:
        yield 0, num_bytes
        return
    yield 0, _EDGE_BYTES
    room = num_bytes - 2 * _EDGE_BYTES - _BLOCK_BYTES
    for rank in range(_BLOCKS):
        yield _EDGE_BYTES + rank * room // (_BLOCKS - 1), _BLOCK_BYTES
    yield num_bytes - _EDGE_BYTES, _EDGE_BYTES
