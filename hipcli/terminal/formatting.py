"""Numbers, names and tables as a person reads them: plain text, no terminal known here."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """`text` with every control character but those in `keep` spelled out, as in `\\x1b[31m`.

    What a model or a file name contains must not steer the terminal it is shown on.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character in keep or not _is_control(character) else _spelled(character)
        for character in text
    )


def one_line(text: str) -> str:
    """`text` on a single line: line breaks become spaces, control characters are spelled out."""
    return escape_controls(_LINE_BREAK.sub(" ", text.strip()), keep="")


def count(number: int) -> str:
    """1234567 as `1,234,567`."""
    return f"{number:,}"


def size(num_bytes: float) -> str:
    """A number of bytes in the largest binary unit that leaves a whole part: `1.5 GiB`."""
    exponent = 0
    while num_bytes >= 1024 and exponent < len(_UNITS) - 1:
        num_bytes /= 1024
        exponent += 1
    digits = 0 if exponent == 0 else 1
    return f"{num_bytes:.{digits}f} {_UNITS[exponent]}"


def duration(seconds: float) -> str:
    """Seconds as `8 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(number: int, noun: str) -> str:
    """`1 file`, `3 files`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Columns aligned by spaces; nothing is ever cut, so the lines suit `awk` and `grep`.

    Args:
        header: one name per column.
        rows: one string per column; control characters are spelled out.
        right: numbers of the columns to align at the right.

    Returns:
        The lines, each ended by a newline.
    """
    cells = [list(header)] + [[one_line(cell) for cell in row] for row in rows]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    at_right = set(right)
    lines = []
    for row in cells:
        padded = []
        for column, cell in enumerate(row):
            space = " " * (widths[column] - _width(cell))
            padded.append(space + cell if column in at_right else cell + space)
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def _is_control(character: str) -> bool:
    # Format characters (Cf) hold the marks that turn the direction of text around.
    category = unicodedata.category(character)
    return category == "Cc" or character in "\u2028\u2029" or "\u202a" <= character <= "\u202e"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _width(text: str) -> int:
    """Terminal cells of `text`: wide East Asian characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(character)
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )
