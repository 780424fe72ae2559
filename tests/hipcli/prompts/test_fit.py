"""Contexts made to fit: what stays, and that what stays can still be cited."""

import re

import pytest

from hipcli.documents import Corpus
from hipcli.engine.errors import DoesNotFitError
from hipcli.prompts import assemble, fit
from hipcli.prompts.fit import CUT_MARK
from tests.hipcli.prompts.fakes import ByteTokenizer, corpus, document, paged


def lines(name: str, count: int) -> str:
    return "".join(f"~{name} line {i};\n" for i in range(1, count + 1))


TWO = corpus(document("a", lines("a", 80)), document("b", lines("b", 80)))
BOOK = corpus(paged("book", [lines(f"p{i}", 20).rstrip("\n") for i in range(1, 9)]))


@pytest.mark.parametrize("documents", [TWO, BOOK])
@pytest.mark.parametrize("keep", ["head", "tail", "middle"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_what_is_kept_fits_and_is_counted(documents: Corpus, keep: str, share: float) -> None:
    tokenizer = ByteTokenizer(1)
    whole = assemble(documents, tokenizer, None)
    limit = int(len(whole.ids) * share)
    context, dropped = fit(whole, limit, keep, tokenizer)  # type: ignore[arg-type]
    assert limit - 60 < len(context.ids) <= limit
    assert dropped == whole.document_tokens - context.document_tokens > 0
    text = tokenizer.decode(context.ids.tolist())
    assert text.count(CUT_MARK) == 1
    # Whatever is there is whole: tags in pairs, the scaffold in front.
    assert text.count("<document ") == text.count("</document>") > 0
    assert text.startswith(tokenizer.decode(whole.ids[:20].tolist()))
    written = documents.documents[0].text + documents.documents[-1].text.rstrip("\n")
    first, last = written.split("\n")[0], written.split("\n")[-1]
    assert (first in text, last in text) == (keep != "tail", keep != "head")


@pytest.mark.parametrize("documents", [TWO, BOOK])
@pytest.mark.parametrize("keep", ["head", "tail", "middle"])
def test_locations_are_those_of_the_whole(documents: Corpus, keep: str) -> None:
    tokenizer = ByteTokenizer(3)
    whole = assemble(documents, tokenizer, None)
    context, _ = fit(whole, len(whole.ids) // 2, keep, tokenizer)  # type: ignore[arg-type]
    seen = 0
    for start in range(0, len(context.ids) - 8):
        for passage in context.locate(start, start + 8):
            for number, line in enumerate(passage.text.split("\n"), start=passage.line_start):
                found = re.fullmatch(r"~(\w+) line (\d+);", line)
                if found:
                    seen += 1
                    assert int(found[2]) == number
                    assert found[1] == (f"p{passage.page}" if passage.page else passage.name)
    assert seen


def test_what_fits_stays_as_it_is() -> None:
    tokenizer = ByteTokenizer(1)
    whole = assemble(TWO, tokenizer, None)
    assert fit(whole, len(whole.ids), "head", tokenizer) == (whole, 0)
    one_less, dropped = fit(whole, len(whole.ids) - 1, "head", tokenizer)
    assert len(one_less.ids) <= len(whole.ids) - 1
    assert dropped > 0


def test_documents_left_out_are_still_named() -> None:
    tokenizer = ByteTokenizer(1)
    whole = assemble(TWO, tokenizer, None)
    context, _ = fit(whole, len(whole.ids) // 3, "head", tokenizer)
    assert [(d.name, d.text_tokens > 0) for d in context.documents] == [("a", True), ("b", False)]
    left_out = context.documents[1]
    assert left_out.start_token == left_out.end_token


def test_no_room_at_all() -> None:
    tokenizer = ByteTokenizer(1)
    with pytest.raises(DoesNotFitError, match="10 tokens"):
        fit(assemble(TWO, tokenizer, None), 10, "middle", tokenizer)
