"""What reading gives: documents, what was left out and why, and what the user should know.

Light on purpose: no reader is imported here, so a command can name these types at no cost.
"""

from dataclasses import dataclass
from typing import Literal

Status = Literal["read", "partial", "skipped", "failed"]
PageStatus = Literal["text", "empty", "image-only", "garbled", "failed"]

# What the pages of a kind are called, in marks and citations; "page" where nothing is said.
_UNITS = {"notebook": "cell", "pptx": "slide", "xlsx": "sheet", "epub": "chapter"}

PAGED_KINDS = ("pdf", *_UNITS)


def unit_of(kind: str) -> str:
    """What a page of a document of that kind is called: "page", "cell", "slide", ..."""
    return _UNITS.get(kind, "page")


@dataclass(frozen=True, slots=True)
class Page:
    """A page, cell, slide, sheet or chapter: characters [start_char, end_char) of the text.

    Args:
        number: 1-based, as a viewer counts.
        label: what is printed on the page ("xii", "A-3") where the file says so, else None;
            for a notebook the kind of the cell ("code", "markdown", "raw"), for a slide, sheet or
            chapter its title.
        status: `image-only` and `garbled` pages may still carry a header line; `empty`, `failed`
            and `garbled` pages carry no text.
    """

    number: int
    label: str | None
    start_char: int
    end_char: int
    status: PageStatus


@dataclass(frozen=True, slots=True)
class OutlineEntry:
    """A section as the file's own outline (bookmarks) has it.

    Args:
        level: 1 for the highest.
        page: 1-based, where it begins.
    """

    title: str
    level: int
    page: int


@dataclass(frozen=True, slots=True)
class Document:
    """One input: what was read from it, or why nothing was.

    Args:
        name: as the model sees it: the path as typed, printable, valid Unicode; "stdin" for `-`.
        path: absolute, ready for `open`; bytes that are not UTF-8 are surrogate escapes. "-" for
            standard input.
        kind: "text", "markdown", "code", "notebook", "pdf", "html", "docx", "pptx", "xlsx",
            "epub"; of what was not read also "binary", "archive", "folder", "link".
        sha256: hex digest of the bytes, "" where they were not read.
        text: what the model reads; newlines are "\\n", no lone surrogates, no byte order mark.
        encoding: Python's name of the text encoding, None for PDFs and for what was not read.
        code: a stable word for `reason`; "" when there is none.
        hint: what the user can do about `reason`; may be empty.
        outline: sections that the file itself names, in order; empty for most files.
    """

    name: str
    path: str
    kind: str
    sha256: str
    num_bytes: int
    text: str
    pages: tuple[Page, ...]
    encoding: str | None
    status: Status
    code: str
    reason: str
    hint: str
    outline: tuple[OutlineEntry, ...] = ()

    @property
    def num_pages(self) -> int | None:
        """Pages of a PDF; None for other kinds (cells, slides and sheets are not pages)."""
        return len(self.pages) if self.kind == "pdf" else None

    def page_at(self, char: int) -> Page | None:
        """The page (or cell) that holds character `char` of the text, None without pages."""
        for page in self.pages:
            if page.start_char <= char < page.end_char:
                return page
        return None

    def line_at(self, char: int) -> int:
        """The 1-based line of character `char`: of the file, or of its page (or cell).

        Takes time linear in `char`; `hipcli.prompts.Context` answers the same from arrays.
        """
        page = self.page_at(char)
        return self.text.count("\n", page.start_char if page else 0, char) + 1


@dataclass(frozen=True, slots=True)
class Warning_:
    """What the user should know and no error is. `code` is stable, `message` is for people."""

    code: str
    message: str
    path: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """All that was read.

    Args:
        documents: those with text, in the order of the sources, folders in byte order of paths.
        inputs: every input, also those skipped or failed, in the same order.
        warnings: pages without text, bytes that are no text, named sources left out.
    """

    documents: tuple[Document, ...]
    inputs: tuple[Document, ...]
    warnings: tuple[Warning_, ...]

    @classmethod
    def of_text(cls, name: str, text: str) -> "Corpus":
        """One document of a text that lies in no file."""
        document = Document(
            name=name,
            path="-",
            kind="text",
            sha256="",
            num_bytes=len(text.encode()),
            text=text,
            pages=(),
            encoding="utf-8",
            status="read",
            code="",
            reason="",
            hint="",
        )
        return cls((document,), (document,), ())
