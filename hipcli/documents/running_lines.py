"""Headers, footers and page numbers: lines that stand at the edge of most pages of a PDF.

Thousands of copies of one line take up the model's attention and say nothing. A number in such a
line counts as the same when it goes up with the pages; "Total: 312" under one table and "Total: 7"
under another are no page numbers, and stay.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

# Fewer pages show no pattern.
_MIN_PAGES = 4
# Left and right pages often have headers of their own, each on not quite half of the pages.
_MIN_SHARE = 0.4
# Lines at the top, and as many at the bottom, that may be running ones.
_EDGE_LINES = 2
_MAX_CHARS = 160
_NUMBER = re.compile(r"\d{1,6}")
_MAX_NUMBERS = 3
_ROMAN = re.compile(r"[ivxlcdm]{1,8}", re.IGNORECASE)


def drop_running_lines(pages: list[str], labels: Sequence[str | None]) -> list[str]:
    """Pages without the lines that most of them have at their top or bottom.

    A page that has no other lines stays as it is.

    Args:
        pages: texts; empty where there is none.
        labels: what is printed on each page as its number, None where the file does not say.
    """
    written = sum(1 for page in pages if page)
    if written < _MIN_PAGES:
        return pages
    split = [page.split("\n") if page else [] for page in pages]
    counts: Counter[tuple[str, str]] = Counter()
    for index, lines in enumerate(split):
        edges = _edges(lines)
        # Once a page, though a line may stand at its top twice.
        counts.update({key for at in edges for key in _keys(lines[at], index, labels[index])})
    needed = max(_MIN_PAGES, _MIN_SHARE * written)
    running = {key for key, count in counts.items() if count >= needed}
    if not running:
        return pages
    return [_without(lines, index, labels[index], running) for index, lines in enumerate(split)]


def _without(lines: list[str], index: int, label: str | None, running: set[tuple[str, str]]) -> str:
    written = [at for at, line in enumerate(lines) if line.strip()]
    dropped = set()
    for edge in (written[:_EDGE_LINES], written[::-1][:_EDGE_LINES]):
        for at in edge:
            # Behind a line of the text there is no header any more.
            if running.isdisjoint(_keys(lines[at], index, label)):
                break
            dropped.add(at)
    kept = [line for at, line in enumerate(lines) if at not in dropped]
    text = "\n".join(kept).strip("\n").rstrip()
    return text or "\n".join(lines)


def _edges(lines: Sequence[str]) -> list[int]:
    """Places of the first and last lines with something in them."""
    written = [at for at, line in enumerate(lines) if line.strip()]
    return sorted({*written[:_EDGE_LINES], *written[-_EDGE_LINES:]})


def _keys(line: str, index: int, label: str | None) -> Iterator[tuple[str, str]]:
    """What a line has in common with those of other pages, if it is a running one."""
    text = " ".join(line.split())
    if len(text) > _MAX_CHARS:
        return
    if re.search(r"[^\W\d_]", text):
        yield "same", text
    if label and text.strip("-–— []()") == label and _ROMAN.fullmatch(label):
        yield "label", ""
    for match in list(_NUMBER.finditer(text))[:_MAX_NUMBERS]:
        # How far the number is from the page's own is the same on all pages, for a page number.
        offset = int(match[0]) - index
        yield "number", f"{text[: match.start()]}\0{offset}\0{text[match.end() :]}"
