"""The text around documents: what opens and closes one, and what marks its pages.

A delimiter must occur in no document, or a document could close itself and open another. The one
used is chosen by the documents alone, never by chance, so the same documents always give the same
token ids and a saved session can be found again.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hipcli.documents import Corpus, Document, Page, unit_of

# Wording chosen with the default model (135M parameters, greedy, ten questions about four short
# files): instruction after the question 8 right; only before the documents 5; tags instead of
# "=== name ===" lines 5 against 3.
INTRODUCTION = "Read the documents. Then answer the question about them.\n\n"
QUESTION = "Question: "
INSTRUCTION = "Answer briefly, from the documents only."
_TAG = re.compile(r"</?document([0-9]{0,18})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the prompt that is encoded on its own.

    Args:
        text: never empty.
        document: index into the corpus's documents.
        is_text: it is text of the document; otherwise a delimiter or a page mark of ours.
        page: the page or cell that the text or mark is of, None for delimiters and for documents
            without pages.
    """

    text: str
    document: int
    is_text: bool
    page: Page | None = None


def pieces(corpus: Corpus) -> Iterator[Piece]:
    """All that stands between the introduction and the question, in order."""
    tag = choose_tag(corpus.documents)
    for index, document in enumerate(corpus.documents):
        yield Piece(f'<{tag} name="{document.name}">\n', index, is_text=False)
        last = ""
        for page, text in _texts(document):
            if page is not None:
                mark = page_mark(document.kind, page)
                mark = f"\n{mark}\n" if last else f"{mark}\n"
                yield Piece(mark, index, is_text=False, page=page)
            yield Piece(text, index, is_text=True, page=page)
            last = text[-1]
        closing = f"</{tag}>\n\n"
        yield Piece(closing if last == "\n" else f"\n{closing}", index, is_text=False)


def render(corpus: Corpus) -> str:
    """The very text of the documents as the model gets it, delimiters and page marks included."""
    return "".join(piece.text for piece in pieces(corpus))


def page_mark(kind: str, page: Page) -> str:
    """What stands above a page or cell: "[page 12]", "[page 12, printed as xii]", "[cell 3, code]".

    Args:
        kind: the kind of the document.
    """
    label = " ".join((page.label or "").split())
    if not label:
        return f"[{unit_of(kind)} {page.number}]"
    if kind == "pdf":
        return f"[page {page.number}, printed as {label}]"
    return f"[{unit_of(kind)} {page.number}, {label}]"


def choose_tag(documents: Iterable[Document]) -> str:
    """The first of "document", "document1", "document2", ... that no text or name has as a tag.

    One pass over all texts, whatever stands in them.
    """
    taken: set[str] = set()
    for document in documents:
        for text in (document.name, document.text, *(p.label or "" for p in document.pages)):
            for match in _TAG.finditer(text):
                digits = match[1]
                # "<document12" holds "<document1" too.
                taken.update(digits[:length] for length in range(len(digits) + 1))
    number = 1
    while taken and str(number) in taken:
        number += 1
    return f"document{number}" if taken else "document"


def _texts(document: Document) -> Iterator[tuple[Page | None, str]]:
    """The pages of a document that have text, or all of it where there are no pages."""
    if not document.pages:
        yield None, document.text
    for page in document.pages:
        if page.end_char > page.start_char:
            yield page, document.text[page.start_char : page.end_char]
