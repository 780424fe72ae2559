"""What a file says of its own parts, on its way to the prompt and into sections."""

from dataclasses import replace

import numpy as np
import pytest

from hipcli.documents import OutlineEntry, Page
from hipcli.prompts import Context, assemble
from hipcli.prompts.layout import page_mark
from hipcli.summary.sections import find_sections
from tests.hipcli.prompts.fakes import ByteTokenizer, corpus, paged

OUTLINE = (OutlineEntry("Storms", 1, 2), OutlineEntry("Calm", 1, 3), OutlineEntry("Gone", 1, 9))


def make_context() -> Context:
    texts = [f"Page {i} of the book. " + "The sea was grey all day. " * 4 for i in range(4)]
    book = replace(paged("book.pdf", texts), outline=OUTLINE)
    return assemble(corpus(book), ByteTokenizer(1), None)


def test_bookmarks_are_sections_from_their_pages_on() -> None:
    sections = find_sections(make_context())
    assert [(s.titles, s.first, s.last) for s in sections] == [
        (("Beginning",), 1, 1),
        (("Storms",), 2, 2),
        (("Calm",), 3, 4),
    ]


def test_a_saved_session_keeps_the_outline() -> None:
    context = make_context()
    again = Context.from_manifest(
        context.to_manifest(), np.asarray(context.ids, dtype=np.int32), context.decode
    )
    assert again.documents[0].outline == OUTLINE
    assert find_sections(again) == find_sections(context)


@pytest.mark.parametrize(
    ("kind", "label", "mark"),
    [
        ("pdf", None, "[page 3]"),
        ("pdf", "xii", "[page 3, printed as xii]"),
        ("notebook", "code", "[cell 3, code]"),
        ("pptx", "The\nplan", "[slide 3, The plan]"),
        ("xlsx", "Tides", "[sheet 3, Tides]"),
        ("epub", None, "[chapter 3]"),
    ],
)
def test_marks_say_what_the_parts_are(kind: str, label: str | None, mark: str) -> None:
    assert page_mark(kind, Page(3, label, 0, 1, "text")) == mark
