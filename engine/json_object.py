"""The JSON files beside a model's weights. Importing this imports no tokenizer."""

import json
from pathlib import Path
from typing import Any

from hipcli.engine.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file.

    Raises:
        ModelError: the file cannot be read, or is not a JSON object.
    """
    try:
        if path.exists() and not path.is_file():
            # Nobody may ever write into a pipe.
            raise OSError("it is no regular file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Cannot read {path.name} of the model in {path.parent}: {error}",
            hint="Pull the model again, or restore the file.",
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} is not a JSON object.", hint="Pull the model again.")
    return content
