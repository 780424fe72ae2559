"""The small interface of all readers: `read(data, hints) -> Content`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hipcli.documents.document import OutlineEntry, Page, PageStatus
from hipcli.documents.options import PdfLimits


@dataclass(frozen=True, slots=True)
class Hints:
    """What a reader may be told besides the bytes.

    Args:
        encoding: the user's word on text without a mark, None to guess.
        password: for encrypted files; never shown.
        pdf_limits: for every kind that a child process reads.
    """

    encoding: str | None = None
    password: str | None = field(default=None, repr=False)
    pdf_limits: PdfLimits = PdfLimits()


@dataclass(frozen=True, slots=True)
class Content:
    """What a reader found.

    Args:
        text: newlines are "\\n", no lone surrogates, no byte order mark.
        pages: empty for kinds without pages or cells.
        outline: sections that the file itself names; empty for most kinds.
        encoding: Python's name, None where bytes are not text.
        partial: something of the input is missing from `text`; the warnings say what.
        warnings: (code, message) pairs; the message does not name the input.
    """

    text: str
    pages: tuple[Page, ...] = ()
    encoding: str | None = None
    partial: bool = False
    warnings: tuple[tuple[str, str], ...] = ()
    outline: tuple[OutlineEntry, ...] = ()


def join_parts(parts: Sequence[tuple[str, str]]) -> tuple[str, tuple[Page, ...]]:
    """(label, text) of cells, slides, sheets or chapters as one text with its pages."""
    pages, at = [], 0
    for number, (label, text) in enumerate(parts, start=1):
        status: PageStatus = "text" if text.strip() else "empty"
        pages.append(Page(number, label or None, at, at + len(text), status))
        at += len(text) + 1
    return "\n".join(text for _, text in parts), tuple(pages)
