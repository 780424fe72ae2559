"""Where sections begin, from the text alone: headings of Markdown, books, manuals, plain text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_TITLE_CHARS = 80

_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_MARKDOWN = re.compile(r" {0,3}(#{1,6})\s+(.+?)\s*#*\s*")
_UNDERLINE = re.compile(r"([=\-~^])\1{2,}\s*")
_CHAPTER = re.compile(
    r"\s*(chapter|part|book|appendix|prologue|epilogue|introduction|conclusion|preface|foreword"
    r"|kapitel|teil|anhang|chapitre|partie|cap[ií]tulo|capitolo)\b.{0,60}?(?<![,;])\s*",
    re.IGNORECASE,
)
# "3 Installation", "3.2 Wiring", "A.1 Tables"; levels deeper than two are no sections.
_NUMBERED = re.compile(r"\s*((?:\d{1,2}|[A-Z])(?:\.\d{1,2})?)\.?\s+([A-Z][^.!?:;]{2,70}?)\s*")
# A line of a table of contents ends with its page, often behind dots.
_LISTED = re.compile(r".*(\.{3,}|\s{2,}|…)\s*([0-9]+|[ivxl]+)\s*", re.IGNORECASE)
# Kinds whose headings are marked as in Markdown, those that a reader marked included.
_MARKED = ("markdown", "html", "docx", "epub", "pptx")
# Some page of a document may list all headings; a page of text has a few.
_MAX_A_PAGE = 5


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading.

    Args:
        line: of the text it was found in, from 0.
        level: 1 for the highest.
        title: on one line.
    """

    line: int
    level: int
    title: str


def find_headings(lines: Sequence[str], kind: str) -> list[Heading]:
    """Headings of a document, or of one page of it.

    Args:
        lines: without line ends.
        kind: of the document; code, notebooks and sheets have none.
    """
    if kind in _MARKED:
        return _of_markdown(lines)
    if kind == "pdf":
        found = [*_of_chapters(lines, alone=False), *_numbered(lines)]
        found = [heading for heading in found if not _LISTED.fullmatch(lines[heading.line])]
        found = sorted({heading.line: heading for heading in found}.values(), key=_line)
        return found if len(found) <= _MAX_A_PAGE else []
    if kind == "text":
        found = [*_of_chapters(lines, alone=True), *_underlined(lines)]
        return sorted({heading.line: heading for heading in found}.values(), key=_line)
    return []


def _line(heading: Heading) -> int:
    return heading.line


def _of_markdown(lines: Sequence[str]) -> list[Heading]:
    found, fence = [], ""
    for number, line in enumerate(lines):
        opened = _FENCE.match(line)
        if opened and (not fence or opened[1] == fence):
            fence = "" if fence else opened[1]
        match = None if fence else _MARKDOWN.fullmatch(line)
        if match:
            found.append(Heading(number, len(match[1]), title(match[2])))
    return found


def _of_chapters(lines: Sequence[str], alone: bool) -> list[Heading]:
    """Lines such as "Chapter 3. The letter".

    Args:
        alone: only lines between empty ones; running text may begin with "Part of it" too.
    """
    found = []
    for number, line in enumerate(lines):
        if not _CHAPTER.fullmatch(line) or line.strip()[:1].islower():
            continue
        before = lines[number - 1].strip() if number else ""
        behind = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if not before and (not alone or not behind):
            found.append(Heading(number, 1, title(line)))
    return found


def _numbered(lines: Sequence[str]) -> list[Heading]:
    found = []
    for number, line in enumerate(lines):
        match = _NUMBERED.fullmatch(line)
        if match:
            found.append(Heading(number, match[1].count(".") + 1, title(line)))
    return found


def _underlined(lines: Sequence[str]) -> list[Heading]:
    """Titles underlined as in reStructuredText; the kinds of line are levels as they come."""
    found, kinds = [], []
    for number, line in enumerate(lines[1:], start=1):
        above = lines[number - 1].rstrip()
        match = _UNDERLINE.fullmatch(line)
        if match and above.strip() and len(line.rstrip()) >= len(above) <= MAX_TITLE_CHARS:
            if match[1] not in kinds:
                kinds.append(match[1])
            found.append(Heading(number - 1, kinds.index(match[1]) + 1, title(above)))
    return found


def title(text: str) -> str:
    """`text` on one line, not too long."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_TITLE_CHARS else words[: MAX_TITLE_CHARS - 1].rstrip() + "…"
