"""Numbers, names and tables as a person reads them: plain text, no terminal known here."""

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_LINE_BREAK = re.compile(r"\s*[\r\n]\s*")
_GAP = "  "
# Of a terminal's width what a wrapped last column must have, else a row becomes a block.
_LEAST_SHARE = 0.4
_NARROW = 40
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


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Iterable[int] = (),
    width: int | None = None,
    key: int = 0,
) -> str:
    """Columns aligned by spaces; nothing is ever cut, so the lines suit `awk` and `grep`.

    Args:
        header: one name per column.
        rows: one string per column; control characters are spelled out.
        right: numbers of the columns to align at the right.
        width: of the terminal that shows it, None if none does. What does not fit goes on below:
            the last column under itself, or each cell on a line of its own.
        key: the column that heads these lines.

    Returns:
        The lines, each ended by a newline.
    """
    cells = [list(header)] + [[one_line(cell) for cell in row] for row in rows]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]
    before = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1)
    if width is not None and before + widths[-1] > width:
        room = width - before
        if room < width * _LEAST_SHARE:
            return _blocks([[row[key], *row[:key], *row[key + 1 :]] for row in cells], width)
        wrapped = [[*row[:-1], *(_wrapped(row[-1], room) or [""])] for row in cells]
    else:
        wrapped = cells
    at_right = set(right)
    lines = []
    for row in wrapped:
        padded = []
        for column, (cell, cells_wide) in enumerate(zip(row, widths, strict=False)):
            space = " " * (cells_wide - _width(cell))
            padded.append(space + cell if column in at_right else cell + space)
        lines.append(_GAP.join(padded).rstrip() + "\n")
        lines += [" " * before + more + "\n" for more in row[len(widths) :]]
    return "".join(lines)


def facts(named: Mapping[str, object]) -> str:
    """What is known about one thing, a fact a line: `trained_tokens: 8,192`."""
    return "".join(one_line(f"{name}: {_fact(name, named[name])}") + "\n" for name in named)


def _fact(name: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return size(value) if "bytes" in name else count(value)
    return str(value)


def _blocks(cells: Sequence[Sequence[str]], width: int) -> str:
    """A row as its first cell, and each other cell below it behind its column's name."""
    names = [name.lower() for name in cells[0]]
    beside = max(map(len, names[1:]))
    # In a very narrow terminal names do not stand beside the cells but before them.
    beside = beside if width >= _NARROW else 0
    indent = beside + 2 * len(_GAP)
    lines = []
    for first, *others in cells[1:]:
        lines.append(f"{first}\n")
        for name, cell in zip(names[1:], others, strict=True):
            if not beside:
                lines.append(f"{_GAP}{name}\n")
            head, *rest = _wrapped(cell, width - indent) or ["-"]
            lines.append(f"{_GAP}{name if beside else '':{beside}}{_GAP}{head}\n")
            lines += [" " * indent + more + "\n" for more in rest]
    return "".join(lines)


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, max(room, 1), break_long_words=False, break_on_hyphens=False)


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
