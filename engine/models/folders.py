"""Model folders on disk: what one is, what it holds, what hip notes beside it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError
from hipcli.engine.json_object import read_json

MANIFEST = "hip-model.json"
_FORMAT_VERSION = 1
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that is ready to load.

    Args:
        name: as the user named it.
        path: the folder with `config.json`, `model.safetensors`, `tokenizer.json`.
        revision: a hub commit, the start of a GGUF file's digest, or `local`.
        format: what the weights were published as: `safetensors`, or `gguf` (converted once).
    """

    name: str
    path: Path
    revision: str
    format: str


def write_manifest(folder: Path, *, name: str, source: str, sha256: str, revision: str) -> None:
    """Note beside a converted copy where it comes from. `source` is for people."""
    record = {
        "format_version": _FORMAT_VERSION,
        "name": name,
        "source": source,
        "revision": revision,
        "sha256": sha256,
        "format": "gguf",
    }
    (folder / MANIFEST).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def source_of(model: ModelFolder) -> str:
    """Where a model comes from, for people: what its note says, the hub, or its own folder."""
    source = read_json(model.path / MANIFEST).get("source")
    if isinstance(source, str) and source:
        return source
    return "this machine" if model.revision == "local" else f"the hub: {model.name}"


def read_manifest(folder: Path) -> ModelFolder | None:
    """The model of a folder hip made, None for a folder without a usable note."""
    record = read_json(folder / MANIFEST)
    if record.get("format_version") != _FORMAT_VERSION:
        return None
    return ModelFolder(
        name=str(record.get("name", folder.name)),
        path=folder,
        revision=str(record.get("revision", "")),
        format=str(record.get("format", "safetensors")),
    )


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, every one of them present.

    Raises:
        ModelError: none there, one missing, or only pickled weights.
    """
    index = read_json(folder / _INDEX)
    if index:
        files = [folder / name for name in _listed(index, folder)]
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    else:
        files = []
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{folder} is incomplete: {len(missing)} of {len(files)} weight files are missing "
            f"({missing[0]}).",
            hint="Pull the model again.",
        )
    if not files:
        raise _no_weights(folder)
    return files


def _listed(index: dict[str, Any], folder: Path) -> list[str]:
    """Names of the files that an index of weights lists."""
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{folder / _INDEX} is damaged.", hint="Pull the model again.")
    return sorted({Path(name).name for name in places.values()})


def _no_weights(folder: Path) -> ModelError:
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    pickles = [name for name in names if name.endswith(_PICKLES)]
    ggufs = [name for name in names if name.endswith(".gguf")]
    if pickles:
        return ModelError(
            f"{folder / pickles[0]} is a pickle, a kind of file that can run code when it is "
            "opened; hip does not load it.",
            hint="Take a revision of the model with safetensors weights.",
        )
    if ggufs:
        return ModelError(
            f"{folder} holds no safetensors weights.", hint=f"Name the file: {folder / ggufs[0]}"
        )
    return ModelError(
        f"{folder} holds no model.safetensors.", hint="Is it the folder of a language model?"
    )


def check_folder(folder: Path) -> None:
    """Check that a folder holds a model's configuration and weights.

    Raises:
        ModelError: it does not.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds no config.json.", hint="Is it the folder of a language model?"
        )
    weight_files(folder)
