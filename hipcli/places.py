"""Where tokens of a context come from: document, page, lines. For evidence and citations.

A fresh context knows its documents. A resumed one has only token ids, so the places of its tokens
are kept in the session's manifest: one row per span of 64 tokens and document page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

STEP_TOKENS = 64

Locate = Callable[[int, int], "list[Place]"]


@dataclass(frozen=True, slots=True)
class Place:
    """A stretch of a document.

    Args:
        path: the document's name as the user typed it.
        page: 1-based number of the page; None where there are no pages.
        page_label: what is printed on the page, such as `xii`; None where there is none.
        line_start: first line, 1-based (on a page: of that page).
        line_end: last line, included.
        text: what stands there.
    """

    path: str
    page: int | None
    page_label: str | None
    line_start: int
    line_end: int
    text: str

    def __str__(self) -> str:
        lines = f"line {self.line_start}"
        if self.line_end != self.line_start:
            lines = f"lines {self.line_start}-{self.line_end}"
        if self.page is None:
            return f"{self.path}, {lines}"
        label = f" ({self.page_label})" if self.page_label not in (None, str(self.page)) else ""
        return f"{self.path}, page {self.page}{label}, {lines}"


def record(locate: Locate, start: int, end: int) -> dict[str, Any]:
    """The places of tokens [start, end) as plain data for a manifest."""
    paths: dict[str, int] = {}
    rows: list[list[Any]] = []
    for first in range(start, end, STEP_TOKENS):
        last = min(first + STEP_TOKENS, end)
        for place in locate(first, last):
            path = paths.setdefault(place.path, len(paths))
            rows.append(
                [first, path, place.page, place.page_label, place.line_start, place.line_end]
            )
    return {"step_tokens": STEP_TOKENS, "paths": list(paths), "rows": rows}


def from_record(recorded: dict[str, Any], text_of: Callable[[int, int], str]) -> Locate:
    """A `locate` over recorded places.

    Args:
        recorded: what `record` returned.
        text_of: the text of tokens [start, end).
    """
    step, paths, rows = recorded["step_tokens"], recorded["paths"], recorded["rows"]

    def locate(start: int, end: int) -> list[Place]:
        found: list[Place] = []
        for first, path, page, label, line_start, line_end in rows:
            if first + step <= start or first >= end:
                continue
            place = Place(paths[path], page, label, line_start, line_end, "")
            if found and _same_page(found[-1], place):
                place = replace(found.pop(), line_end=line_end)
            found.append(place)
        return [replace(place, text=text_of(start, end)) for place in found]

    return locate


def joined(places: Sequence[Place]) -> list[Place]:
    """`places` with those that follow one another on the same page made one."""
    result: list[Place] = []
    for place in places:
        if result and _same_page(result[-1], place):
            before = result.pop()
            place = replace(before, line_end=place.line_end, text=before.text + place.text)
        result.append(place)
    return result


def _same_page(one: Place, other: Place) -> bool:
    return (one.path, one.page) == (other.path, other.page)
