"""TOML configuration: `max_new_tokens = 200`, one key per option, nothing else.

Two files are looked at: the one named by `--config` (or HIP_CONFIG), then the user's own. A
`hip.toml` that merely lies in the folder being read is never loaded: what is read must not decide
how it is read.
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hipcli.config.option import Option
from hipcli.engine.errors import UsageError
from hipcli.engine.nearest import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KINDS = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a string",
    list: "a list of strings",
}


@dataclass(frozen=True, slots=True)
class FileValue:
    """A value and the file it stands in."""

    value: Any
    path: Path


def load(project: Path | None, user: Path, options: Sequence[Option]) -> dict[str, FileValue]:
    """Values of both files by key; the project's win.

    Args:
        project: the file named by the user, which must exist; None for none.
        user: the user's own file, which need not exist.
        options: what may be set.

    Raises:
        UsageError: a file that can't be read, an unknown key, a value of the wrong kind.
    """
    values: dict[str, FileValue] = {}
    if user.is_file():
        values.update(_load_file(user, options))
    if project is not None:
        values.update(_load_file(project, options))
    return values


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """A file as text, and what it says.

    Raises:
        UsageError: it cannot be read, or is not TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"cannot read the configuration file {path}: {error.strerror}",
            "check the path given to --config or HIP_CONFIG",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}", "correct the file") from error


def _load_file(path: Path, options: Sequence[Option]) -> dict[str, FileValue]:
    _, content = read(path)
    known = {option.name: option for option in options if option.in_file}
    for key, value in content.items():
        if key not in known:
            raise UsageError(f"unknown key {key!r} in {path}", suggestion(key, known))
        if not _fits(value, known[key]):
            kind = _KINDS[known[key].kind]
            raise UsageError(f"{key} in {path} is {value!r}", f"it must be {kind}")
    return {key: FileValue(value, path) for key, value in content.items()}


def suggestion(key: str, known: Collection[str]) -> str:
    """What to do about a key that there is not."""
    close = nearest(key, known)
    return f"did you mean {close!r}?" if close else "keys are the long options of `hip ask --help`"


def _fits(value: Any, option: Option) -> bool:
    if option.kind is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if option.kind in (str, Path):
        return isinstance(value, str)
    if option.kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    # In Python a bool is an int; in a configuration file `seed = true` is a mistake.
    return type(value) is option.kind
