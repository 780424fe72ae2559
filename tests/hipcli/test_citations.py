"""Where answers come from: quotes, marks and evidence, each looked up in the documents."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from hipcli.citing.citations import find_citations
from hipcli.citing.evidence_page import evidence_page
from hipcli.citing.grounds import Citation, Finding, Grounds, citation_row
from hipcli.engine.events import Evidence
from hipcli.prompts import Context, assemble
from hipcli.prompts.quoting import find_quote, whole_lines
from hipcli.terminal.report import footnotes
from tests.hipcli.fakes import FakeEngine, FakeTokenizer, run_hip
from tests.hipcli.prompts.fakes import ByteTokenizer, corpus, document, paged

NOTES = "Preface.\n\nThe pump runs at 40 bar.\nIts valve — a “Kestrel” — opens\nat 3 bar only.\n"
MANUAL = (
    "Contents\nWiring 2\nPorts 3",
    "Wiring\nThe red wire goes to terminal 4.\nThe blue one to 5.",
    "Ports\nThe web pages are found at port 8090.\nTelnet is off.",
)


def make_context(width: int = 1) -> Context:
    both = corpus(document("notes.txt", NOTES), paged("manual.pdf", MANUAL, ("i", "ii", "1")))
    return assemble(both, ByteTokenizer(width), None)


def finding(context: Context, words: str, score: float = 0.0) -> Finding:
    text = context.decode(context.ids.tolist())
    # Tokens of one byte: a place in the bytes is a token.
    start = len(text[: text.index(words)].encode())
    start += len(context.ids) - len(text.encode())
    (passage,) = context.locate(start, start + len(words.encode()))
    return Finding(passage, score)


def cited(citation: Citation) -> tuple[str, int | None, int, int, str]:
    row = citation_row(citation)
    return row["path"], row["page"], row["line_start"], row["line_end"], row["quote"]


@pytest.mark.parametrize(
    "quote, place, words",
    [
        ("the pump runs", ("notes.txt", None, 3, 3), "The pump runs"),
        ('valve - a "kestrel" - opens at 3 bar', ("notes.txt", None, 4, 5), None),
        ("The red wire ... to 4.", None, None),
        ("The red ... terminal 4.", ("manual.pdf", 2, 2, 2), "The red wire goes to terminal 4"),
        ("found at port 8090,", ("manual.pdf", 3, 2, 2), "found at port 8090"),
        ("found at port 809", None, None),
        ("…", None, None),
        ("the web pages of 5", None, None),
    ],
)
@pytest.mark.parametrize("width", [1, 3])
def test_a_quote_is_found_as_it_stands(
    quote: str, place: tuple[str, int | None, int, int] | None, words: str | None, width: int
) -> None:
    found = find_quote(make_context(width), quote, [])
    if place is None:
        assert found is None
        return
    assert found is not None
    passage, text = found
    assert (passage.name, passage.page, passage.line_start, passage.line_end) == place
    assert words is None or text == words


@pytest.mark.parametrize("width", [1, 3, 7])
def test_passages_are_completed_to_whole_lines(width: int) -> None:
    context = make_context(width)
    start = int(context.spans[0].start_token)
    for offset in range(4, 40 // width):
        for passage in context.locate(start + offset, start + offset + 30 // width):
            for number, line in whole_lines(context, passage):
                assert line == NOTES.split("\n")[number - 1]


def test_evidence_is_cited_by_the_line_that_says_the_answer() -> None:
    context = make_context()
    found = finding(context, MANUAL[2][3:])
    (citation,) = find_citations("Which port has the web pages?", "8090", context, [found])
    words = "The web pages are found at port 8090."
    assert cited(citation) == ("manual.pdf", 3, 2, 2, words)
    assert citation_row(citation)["page_label"] == "1"
    assert footnotes([citation]) == [f"[1] manual.pdf, page 3 (1), lines 1-3\n    2: {words}\n"]


def test_quotes_come_first_and_are_not_cited_twice() -> None:
    context = make_context()
    evidence = [finding(context, MANUAL[1]), finding(context, "Preface.\n\nThe pump", -1.0)]
    answer = 'It says "the red wire goes to terminal 4", and "the green wire is live".'
    citations = find_citations("Where does the red wire go?", answer, context, evidence)
    rows = [citation_row(citation) for citation in citations]
    assert [row["verified"] for row in rows] == [True, False, True]
    assert (rows[0]["page"], rows[0]["quote"]) == (2, "The red wire goes to terminal 4")
    assert (rows[1]["path"], rows[1]["quote"]) == (None, "the green wire is live")
    assert rows[2]["path"] == "notes.txt"
    assert "green" not in "".join(footnotes(citations))


@pytest.mark.parametrize(
    "answer, page, verified",
    [
        ("The blue wire goes to terminal 5 (page 2).", 2, True),
        ("The blue wire goes to terminal 5 [manual.pdf, page 2].", 2, True),
        ("The blue wire goes to terminal 5 (page 3).", None, False),
        ("The blue wire goes to terminal 5 (page 99).", None, False),
        ("The pump runs at 40 bar (notes.txt, line 3).", None, True),
        ("The pump runs at 40 bar (notes.txt, line 1).", None, False),
    ],
)
def test_a_mark_counts_when_the_words_are_there(
    answer: str, page: int | None, verified: bool
) -> None:
    (citation,) = find_citations("", answer, make_context(), [])
    assert (citation.verified, citation_row(citation)["page"]) == (verified, page)


def test_chapters_of_a_book_without_such_parts_are_words() -> None:
    assert find_citations("", "The wires are in chapter 2 of it.", make_context(), []) == []


def test_one_endless_line_is_cited_by_a_sentence() -> None:
    text = "A short one. " * 3000 + "The code is 4711. " + "Another one. " * 3000
    context = assemble(corpus(document("a.txt", text)), ByteTokenizer(1), None)
    found = finding(context, "one. The code is 4711. Another")
    (citation,) = find_citations("What is the code?", "4711", context, [found])
    assert cited(citation) == ("a.txt", None, 1, 1, "The code is 4711.")
    word = assemble(corpus(document("b.txt", "x" * 5000)), ByteTokenizer(1), None)
    (citation,) = find_citations("", "", word, [Finding(word.locate(0, 3000)[0], 0.0)])
    assert len(citation.quote) == 240


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.marked = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "mark":
            self.tags.append("/mark")

    def handle_data(self, data: str) -> None:
        marks = [tag for tag in self.tags if tag in ("mark", "/mark")]
        if marks[-1:] == ["mark"]:
            self.marked += data


def test_the_evidence_page_highlights_and_escapes() -> None:
    text = "<script>alert(1)</script>\nThe key is <b>under</b> the mat.\nBye.\n"
    context = assemble(corpus(document("a<i>.txt", text)), ByteTokenizer(1), None)
    found = finding(context, "The key is <b>under</b> the mat.")
    citations = find_citations("Where?", "<img src=x>", context, [found])
    html = evidence_page("<q>", "<img src=x>", context, Grounds((found,), tuple(citations)))
    page = _Page()
    page.feed(html)
    assert page.marked == "The key is <b>under</b> the mat."
    assert not {"script", "img", "i", "q"} & set(page.tags)
    assert "http" not in html.replace("http-equiv", "")


def test_ask_writes_the_page_and_verified_citations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(NOTES)
    made = assemble(corpus(document("notes.txt", NOTES)), FakeTokenizer(), None)
    start = made.spans[0].start_token + NOTES.index("The pump")
    evidence = (Evidence(start, start + 24, 0.0),)
    engine = FakeEngine(("40 bar",), evidence=evidence)
    outcome = run_hip(
        "ask", "notes.txt", "How high?", "--json", "--open-evidence", "e.html", engine=engine
    )
    assert outcome.json["citations"] == [
        {
            "path": "notes.txt",
            "page": None,
            "page_label": None,
            "line_start": 3,
            "line_end": 3,
            "quote": "The pump runs at 40 bar.",
            "verified": True,
        }
    ]
    assert "<b>The pump runs at 40 bar.</b>" in Path("e.html").read_text("utf-8")
    again = run_hip("ask", "notes.txt", "Q?", "--open-evidence", "notes.txt", engine=engine)
    assert again.code == 2
    assert "--open-evidence notes.txt would replace" in again.err
    assert Path("notes.txt").read_text() == NOTES
    assert run_hip("ask", "notes.txt", "Q?", "--open-evidence", "-", engine=engine).code == 2
