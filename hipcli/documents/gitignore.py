"""Patterns of one .gitignore file, matched as git does.

A walk that asks about every folder before looking into it needs each pattern to match a path
itself and never what lies below; the pathspec package answers for both at once, and so differs
from git where a folder is ignored and taken back ("bar/**/", "build" with "!*/").

Source: gitignore(5), and wildmatch.c of git for what the manual leaves open.
"""

import itertools
import re
from dataclasses import dataclass

_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "word": "a-zA-Z0-9_",
    "xdigit": "0-9a-fA-F",
}
_STAR = "[^/]*?"
_FOLDERS = "(?:.*?/)??"
_SPECIAL = re.compile(r"[*?\[\\]")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One line.

    Args:
        regex: matches the whole path, or its last part where the line has no "/" in it.
        whole_path: which of the two.
        folders_only: the line ends in "/".
        ignores: false for lines that start with "!".
    """

    regex: re.Pattern[str]
    whole_path: bool
    folders_only: bool
    ignores: bool


class IgnoreRules:
    """The lines of a .gitignore file."""

    def __init__(self, text: str) -> None:
        patterns = [_parse(line) for line in text.split("\n")]
        # The last line that matches decides, so they are asked from the end.
        self._patterns = [pattern for pattern in reversed(patterns) if pattern]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def verdict(self, path: str, is_folder: bool) -> bool | None:
        """True to ignore a path, False to take it back, None when no line speaks of it.

        Args:
            path: relative to the folder of the file, parts joined by "/".
        """
        name = path.rpartition("/")[2]
        for pattern in self._patterns:
            if pattern.folders_only and not is_folder:
                continue
            if pattern.regex.fullmatch(path if pattern.whole_path else name):
                return pattern.ignores
        return None


def _parse(line: str) -> _Pattern | None:
    line = line.removesuffix("\r")
    # Blanks at the end count only behind a backslash.
    stripped = line.rstrip(" ")
    if len(stripped) < len(line) and _ends_in_backslash(stripped):
        stripped += " "
    line = stripped
    # No path is longer than 4,096 bytes.
    if not line or line.startswith("#") or len(line) > 4096:
        return None
    ignores = not line.startswith("!")
    line = line if ignores else line[1:]
    folders_only = line.endswith("/")
    line = line.removesuffix("/")
    if not line:
        return None
    whole_path = "/" in line
    regex = _translate(line.removeprefix("/"))
    if regex is None:
        return None
    return _Pattern(re.compile(regex, re.DOTALL), whole_path, folders_only, ignores)


def _ends_in_backslash(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _translate(pattern: str) -> str | None:
    """A regular expression for a glob; None for one that matches nothing (an open bracket)."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            end = at + len(pattern[at:]) - len(pattern[at:].lstrip("*"))
            part, at = _stars(pattern, at, end)
        elif char == "?":
            part, at = "[^/]", at + 1
        elif char == "[":
            found = _bracket(pattern, at)
            if found is None:
                return None
            part, at = found
        elif char == "\\":
            if at + 1 == len(pattern):
                return None
            part, at = re.escape(pattern[at + 1]), at + 2
        else:
            part, at = re.escape(char), at + 1
        parts.append(part)
    return _join(parts)


def _stars(pattern: str, start: int, end: int) -> tuple[str, int]:
    """What a run of stars means, and where to go on: two between slashes span folders."""
    # git takes off what stands before the first special character and forgets what it was.
    literal_before = not _SPECIAL.search(pattern, 0, start)
    if end - start >= 2 and (literal_before or pattern[start - 1] == "/"):
        if end == len(pattern):
            return ".*", end
        if pattern[end] == "/":
            return _FOLDERS, end + 1
    return _STAR, end


def _join(parts: list[str]) -> str:
    """One expression of the parts, without the backtracking that makes many stars exponential.

    Where a star is followed by another of its kind, the first place at which what is between them
    fits is as good as any other: the second star takes the rest. So that place is never taken
    back, which Python 3.10 can only say by a group in a lookahead.
    """
    numbers = itertools.count()

    def at_first_place(parts: list[str]) -> str:
        name = f"p{next(numbers)}"
        return f"(?=(?P<{name}>{''.join(parts)}))(?P={name})"

    def join(parts: list[str], star: str) -> list[str]:
        starts = [at for at, part in enumerate(parts) if part == star]
        if not starts:
            return parts
        joined = parts[: starts[0]]
        for start, end in zip(starts, starts[1:], strict=False):
            joined.append(at_first_place(parts[start:end]))
        return joined + parts[starts[-1] :]

    folders = [at for at, part in enumerate(parts) if part == _FOLDERS]
    simple: list[str] = []
    for start, end in zip([0, *folders], [*folders, len(parts)], strict=True):
        simple += join(parts[start:end], _STAR)
    return "".join(join(simple, _FOLDERS))


def _bracket(pattern: str, start: int) -> tuple[str, int] | None:
    """A character class and where to go on; None when it is not closed."""
    at = start + 1
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    items: list[str] = []
    first = True
    while at < len(pattern) and (first or pattern[at] != "]"):
        first = False
        named = re.match(r"\[:([a-z]*):\]", pattern[at:])
        if named:
            if named[1] not in _CLASSES:
                return None
            items.append(_CLASSES[named[1]])
            at += named.end()
            continue
        low, at = _class_char(pattern, at)
        high = low
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _class_char(pattern, at + 1)
        # Of a range the wrong way round git matches the first end.
        ends = (low, high) if low <= high else (low,)
        items.append("-".join(map(re.escape, ends)))
    if at >= len(pattern):
        return None
    # No class matches a slash.
    body = "".join(items)
    return (f"[^/{body}]" if negated else f"(?!/)[{body}]"), at + 1


def _class_char(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\" and at + 1 < len(pattern):
        at += 1
    return pattern[at], at + 1
