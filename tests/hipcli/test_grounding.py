"""The passages behind an answer: votes first, then what the answer itself says."""

from pathlib import Path

import pytest

from hipcli.citing.citations import distinctive_words
from hipcli.citing.grounding import find_grounds
from hipcli.citing.grounds import citation_row
from hipcli.prompts import assemble
from tests.hipcli.fakes import FakeEngine, run_hip
from tests.hipcli.prompts.fakes import ByteTokenizer, corpus, document, paged
from tests.hipcli.test_citations import finding

LOG = (
    "On Monday the barge left.\n"
    "The cook made soup of nettles and of very little else that anybody on board could name.\n"
    "The berth of the barge is 17.\n"
    "Nobody saw the pilot again until the lamps were lit along the whole of the eastern quay.\n"
    "The berth of the ferry is 23.\n"
)


def test_a_passage_that_says_the_answer_goes_before_one_with_more_votes() -> None:
    context = assemble(corpus(document("log.txt", LOG)), ByteTokenizer(1), None)
    voted = [finding(context, "The berth of the barge is 17."), finding(context, "ferry is 23", -1)]
    grounds = find_grounds("Which berth has the ferry?", "It is berth 23.", context, voted)
    assert [found.passage.line_start for found in grounds.findings] == [5, 3]
    assert [found.score for found in grounds.findings] == [-1, 0.0]
    assert grounds.citations[0].quote == "The berth of the ferry is 23."
    # Where the answer says nothing of its own the votes decide.
    unsure = find_grounds("Which berth has the ferry?", "The ferry.", context, voted)
    assert [found.passage.line_start for found in unsure.findings] == [3, 5]


def test_a_passage_that_ends_before_the_answer_is_grown_by_it() -> None:
    text = "One.\nThe port of the pages,\nas of version two,\nis 8480.\n" + "More.\n" * 40
    context = assemble(corpus(document("a.txt", text)), ByteTokenizer(1), None)
    voted = [finding(context, "The port of the"), finding(context, "More.\nMore.", -2)]
    grounds = find_grounds("At which port are the pages?", "8480", context, voted)
    first = grounds.findings[0].passage
    assert (first.line_start, first.line_end >= 4) == (2, True)
    assert citation_row(grounds.citations[0])["line_start"] == 4


def test_the_answer_on_the_next_page_is_cited_there() -> None:
    pages = ("The codes are on the next page.", "E12: two probes have one number.", "The end.")
    context = assemble(corpus(paged("m.pdf", pages)), ByteTokenizer(1), None)
    voted = [finding(context, "The codes are on the next")]
    grounds = find_grounds("Which code has the fault?", "E12", context, voted)
    assert grounds.findings[0].passage.page == 2


def test_the_same_lines_are_evidence_once() -> None:
    line = "The berth of the barge is 17, the one of the ferry is 23, and nobody has number 5."
    context = assemble(corpus(document("log.txt", f"{line}\nMore.\n")), ByteTokenizer(1), None)
    voted = [finding(context, "The berth of"), finding(context, "nobody has", -1)]
    voted.append(finding(context, "More.", -2))
    grounds = find_grounds("Which berth?", "None.", context, voted)
    assert [found.passage.line_start for found in grounds.findings] == [1, 2]
    assert grounds.findings[0].score == 0.0


def test_a_text_without_votes_is_cited_by_its_words() -> None:
    context = assemble(corpus(document("log.txt", LOG)), ByteTokenizer(1), None)
    grounds = find_grounds("Which berth has the ferry?", "Berth 23", context, [])
    row = citation_row(grounds.citations[0])
    assert (row["path"], row["line_start"], row["quote"]) == (
        "log.txt",
        5,
        "The berth of the ferry is 23.",
    )
    assert grounds.findings[0].score == 0.0
    assert find_grounds("", "Zebras", context, []).citations == ()


def test_numbers_and_long_words_tell_lines_apart() -> None:
    assert distinctive_words("In E12, at 5 or so: the cat") == {"e12", "5", "the", "cat"}


def test_ask_cites_a_file_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("The ferry leaves from berth 17.\n")
    outcome = run_hip("ask", "a.txt", "Which berth?", "--cite", engine=FakeEngine(("17",)))
    assert outcome.out == "17\n\n[1] a.txt, line 1\n    1: The ferry leaves from berth 17.\n"
