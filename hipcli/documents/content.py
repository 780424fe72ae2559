"""The small interface of all readers: `read(data, hints) -> Content`."""

from dataclasses import dataclass, field

from hipcli.documents.document import Page
from hipcli.documents.options import PdfLimits


@dataclass(frozen=True, slots=True)
class Hints:
    """What a reader may be told besides the bytes.

    Args:
        encoding: the user's word on text without a mark, None to guess.
        password: for encrypted files; never shown.
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
        encoding: Python's name, None where bytes are not text.
        partial: something of the input is missing from `text`; the warnings say what.
        warnings: (code, message) pairs; the message does not name the input.
    """

    text: str
    pages: tuple[Page, ...] = ()
    encoding: str | None = None
    partial: bool = False
    warnings: tuple[tuple[str, str], ...] = ()
