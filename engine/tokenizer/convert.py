"""Making `tokenizer.json` for a model that has only the older vocabulary files.

Transformers knows how to read those (`tokenizer.model`, `vocab.json` with `merges.txt`); it is
imported here alone, and once for each model: the result is kept in the model cache.
"""

import hashlib
import os
from pathlib import Path

from hipcli.engine.errors import ModelError

_OLD_FILES = ("tokenizer.model", "vocab.json", "merges.txt", "tekken.json", "tokenizer_config.json")


def read_tokenizer_json(folder: Path, cache: Path | None) -> bytes:
    """Content of the folder's `tokenizer.json`, or of the converted one.

    Raises:
        ModelError: the folder holds no tokenizer, or one that cannot be read or converted.
    """
    try:
        return (folder / "tokenizer.json").read_bytes()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ModelError(f"Cannot read the tokenizer.json of {folder}: {error}") from error
    old = [folder / name for name in _OLD_FILES if (folder / name).is_file()]
    if not any(file.name != "tokenizer_config.json" for file in old):
        raise ModelError(
            f"There is no tokenizer in {folder}: tokenizer.json is missing.",
            hint="Pull the model again, or copy the tokenizer's files beside its weights.",
        )
    if cache is None:
        return _convert(folder)
    key = hashlib.sha256()
    for file in old:
        key.update(f"{file.name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    kept = cache / "tokenizers" / f"{key.hexdigest()[:32]}.json"
    if not kept.is_file():
        content = _convert(folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(kept)
    return kept.read_bytes()


def _convert(folder: Path) -> bytes:
    # The one path that needs transformers, so that all others start fast.
    from hipcli.engine.models.quiet import quiet_transformers

    try:
        with quiet_transformers():
            from transformers import AutoTokenizer

            converted = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
            return converted.backend_tokenizer.to_str().encode()
    except Exception as error:
        # Transformers raises many kinds here: missing packages, unknown classes, damaged files.
        raise ModelError(
            f"Cannot convert the tokenizer in {folder}: {error}",
            hint="Take a copy of the model that has a tokenizer.json; for tokenizer.model files "
            "the package sentencepiece must be installed.",
        ) from error
