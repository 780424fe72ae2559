"""Changes of one key in the text of a configuration file; every other line stays as it is.

Such a file is flat: keys, values, comments, no tables. So each statement is the shortest run of
lines that is TOML by itself, and the reader of TOML tells where it ends, whatever is in a string.
That is all a writer of TOML would be needed for.
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def with_value(content: str, key: str, value: Any) -> str:
    """The text with `key` set, in its place or else at the end; a comment behind it stays.

    Args:
        content: of a file, valid TOML.
        key: a bare key.
        value: str, int, float, bool, or a list of str.
    """
    statement = f"{key} = {_written(value)}"
    kept, found = "", False
    for name, lines in _statements(content):
        if name == key:
            found = True
            kept += statement + _behind(lines)
        else:
            kept += lines
    if found:
        return kept
    end = "\r\n" if content.partition("\n")[0].endswith("\r") else "\n"
    return kept + (end if kept and not kept.endswith("\n") else "") + statement + end


def without(content: str, key: str) -> str:
    """The text without the statement of `key`."""
    return "".join(lines for name, lines in _statements(content) if name != key)


def _statements(content: str) -> Iterator[tuple[str | None, str]]:
    """The key of each statement and its lines; None for a line that is blank or a comment."""
    run = ""
    # Of all that ends a line of text only this one does in TOML.
    for line in re.findall(r"[^\n]*\n|[^\n]+", content):
        run += line
        try:
            keys = list(tomllib.loads(run))
        except tomllib.TOMLDecodeError:
            continue
        yield (keys[0] if keys else None), run
        run = ""
    if run:
        yield None, run


def _behind(lines: str) -> str:
    """What stands behind the value of a statement: blanks, a comment, the end of the line."""
    whole = tomllib.loads(lines)
    for place, character in enumerate(lines):
        if character == "#" and parsed(lines[:place]) == whole:
            value = lines[:place].rstrip(" \t")
            return lines[len(value) :]
    return lines[len(lines.rstrip("\r\n")) :]


def parsed(text: str) -> dict[str, Any] | None:
    """What a text says; None where it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _written(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        # The escapes of JSON are escapes of TOML, which wants one more character escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
