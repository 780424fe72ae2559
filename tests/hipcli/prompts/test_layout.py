"""Delimiters and marks: what stands around documents, and that no document can forge it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.documents import Document
from hipcli.prompts import render
from hipcli.prompts.layout import choose_tag, pieces
from tests.hipcli.prompts.fakes import corpus, document, paged


def test_a_document_between_its_delimiters() -> None:
    assert render(corpus(document("a.txt", "one\n"), document("b.txt", "two"))) == (
        '<document name="a.txt">\none\n</document>\n\n<document name="b.txt">\ntwo\n</document>\n\n'
    )


def test_pages_are_marked_and_labels_said_where_they_differ() -> None:
    book = paged("b.pdf", ["preface", "", "first"], ["xii", None, None])
    assert render(corpus(book)) == (
        '<document name="b.pdf">\n[page 1, printed as xii]\npreface\n'
        "[page 3]\nfirst\n</document>\n\n"
    )


def test_cells_are_marked() -> None:
    notebook = paged("n.ipynb", ["# T", "x = 1"], ["markdown", "code"], kind="notebook")
    assert "[cell 1, markdown]\n# T\n[cell 2, code]\nx = 1\n" in render(corpus(notebook))


@pytest.mark.parametrize(
    ("texts", "tag"),
    [
        (["plain"], "document"),
        (["a document, <documents>"], "document1"),
        (["</DOCUMENT>"], "document1"),
        (["<document>", "</document1 x>"], "document2"),
        # A tag that starts like another would hold it.
        (["<document12>"], "document2"),
        (["<document1>", "<document99999999999999999999999>"], "document2"),
    ],
)
def test_the_first_tag_that_no_text_has(texts: list[str], tag: str) -> None:
    assert choose_tag([document(str(i), text) for i, text in enumerate(texts)]) == tag


def test_names_and_labels_count_as_text() -> None:
    assert choose_tag([document('x"></document>', "a")]) == "document1"
    assert choose_tag([paged("b", ["t"], ["</document>"])]) == "document1"


TAGGED = st.lists(
    st.sampled_from(["<", ">", "/", "document", "Document", "1", "2", "12", "\n", " ", "x", "é"]),
    max_size=12,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TAGGED, TAGGED), min_size=1, max_size=4))
def test_no_text_or_name_holds_a_delimiter(parts: list[tuple[str, str]]) -> None:
    documents: list[Document] = [document(name, text) for name, text in parts]
    tag = choose_tag(documents)
    for name, text in parts:
        for delimiter in (f"<{tag}", f"</{tag}"):
            assert delimiter not in (name + "\0" + text).lower()


def test_as_many_tags_as_one_likes_take_one_pass() -> None:
    text = "".join(f"<document{i}>" for i in range(1, 200_000)) + "<document>"
    assert choose_tag([document("a", text)]) == "document200000"


def test_pieces_are_the_rendering() -> None:
    documents = corpus(document("a.py", "x\n"), paged("b.pdf", ["p", "q"]))
    found = list(pieces(documents))
    assert "".join(piece.text for piece in found) == render(documents)
    assert [piece.text for piece in found if piece.is_text] == ["x\n", "p", "q"]
    assert all(piece.text for piece in found)
    assert not re.search("[pq]", "".join(p.text for p in found[:3]).replace("a.py", ""))
