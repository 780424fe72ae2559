"""Names of inputs: as people and the model see them, and as lists of them are written."""

import os

# Inputs that a message names.
_MAX_LISTED = 8


def printable_name(path: str) -> str:
    """A path as people and the model see it: valid Unicode, one line, nothing invisible.

    Bytes that are not UTF-8 and characters that cannot be printed are written as escapes, the same
    in every locale.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)


def parse_file_list(data: bytes, nul: bool) -> list[str]:
    """Paths of a `--files-from` file: one a line, or separated by NUL bytes (`-0`).

    Empty lines are passed over; nothing else is: "#" and blanks are parts of names.
    """
    separator = b"\0" if nul else b"\n"
    lines = data.removeprefix(b"\xef\xbb\xbf").split(separator)
    if not nul:
        lines = [line.removesuffix(b"\r") for line in lines]
    return [os.fsdecode(line) for line in lines if line]


def joined(inputs: list[str]) -> str:
    """What is said about each input, on one line: all of a few, the first of many."""
    more = len(inputs) - _MAX_LISTED
    shown = inputs[:_MAX_LISTED] + ([f"and {more:,} more"] if more > 0 else [])
    return "; ".join(shown)
