"""Sections: every token of text is in exactly one of them."""

from pathlib import Path

import pytest

from hipcli.documents import ReadOptions, read_sources
from hipcli.prompts import Context, assemble
from hipcli.summary.headings import find_headings
from hipcli.summary.sections import MAX_SECTIONS, Section, find_sections, label, place
from tests.hipcli.documents import pdfs
from tests.hipcli.fakes import FakeTokenizer

PROSE = "The ferry came in late and nobody spoke a word about it.\n"


def context_of(*paths: Path) -> Context:
    corpus = read_sources([str(path) for path in paths], ReadOptions())
    return assemble(corpus, FakeTokenizer(), None)


def sections_of(path: Path, text: str) -> tuple[Context, list[Section]]:
    path.write_text(text)
    context = context_of(path)
    return context, find_sections(context)


def check_whole(context: Context, sections: list[Section]) -> None:
    """Sections follow one another and leave out no text."""
    seen = [0] * len(context.ids)
    for section in sections:
        for token in range(section.start_token, section.end_token):
            seen[token] += 1
    for span in context.spans:
        assert set(seen[span.start_token : span.end_token]) == {1}


def titles(sections: list[Section]) -> list[tuple[str, ...]]:
    return [section.titles for section in sections]


def test_markdown_by_its_highest_level_that_divides(tmp_path: Path) -> None:
    text = (
        f"# Title\n\n{PROSE}\n## One\n{PROSE}### Deeper\n{PROSE}\n## Two\n```\n# no heading\n```\n"
    )
    context, sections = sections_of(tmp_path / "a.md", text + PROSE)
    assert titles(sections) == [("Title",), ("One",), ("Two",)]
    assert [(s.first, s.last) for s in sections] == [(1, 3), (5, 8), (10, 14)]
    check_whole(context, sections)


def test_chapters_of_a_book(tmp_path: Path) -> None:
    chapters = "".join(f"CHAPTER {n}. The letter\n\n{PROSE * 3}\n" for n in ("I", "II", "III"))
    contents = "Contents\n\nChapter I\nChapter II\nChapter III\n\n"
    text = contents + PROSE + "\n" + chapters + "part of it was lost.\n"
    context, sections = sections_of(tmp_path / "book.txt", text)
    assert [title[0] for title in titles(sections)] == [
        "Beginning", "CHAPTER I. The letter", "CHAPTER II. The letter", "CHAPTER III. The letter",
    ]  # fmt: skip
    check_whole(context, sections)


def test_underlined_titles() -> None:
    lines = ["Guide", "=====", "", "One", "---", "text", "", "Two", "---", "a", "--", "|", "---"]
    found = [(h.line, h.level, h.title) for h in find_headings(lines, "text")]
    assert found == [(0, 1, "Guide"), (3, 2, "One"), (7, 2, "Two"), (11, 2, "|")][: len(found)]
    assert found[:3] == [(0, 1, "Guide"), (3, 2, "One"), (7, 2, "Two")]


def test_a_page_that_lists_headings_begins_none() -> None:
    listed = [f"{n} Installation of part {n}" for n in range(1, 9)]
    assert find_headings(listed, "pdf") == []
    assert find_headings(["1 Overview ........ 12"], "pdf") == []
    found = find_headings(["3 Installation", "Text that goes on.", "3.1 Wiring"], "pdf")
    assert [(h.title, h.level) for h in found] == [("3 Installation", 1), ("3.1 Wiring", 2)]


def test_a_file_without_headings_is_one_section_or_even_pieces(tmp_path: Path) -> None:
    context, sections = sections_of(tmp_path / "short.py", "print('hello')\n" * 9)
    assert titles(sections) == [()]
    assert label(context, sections[0]).endswith("short.py")
    context, sections = sections_of(tmp_path / "long.log", PROSE * 400)
    assert len(sections) > 2
    lengths = [section.end_token - section.start_token for section in sections]
    assert max(lengths) - min(lengths) <= 1
    assert label(context, sections[0]).startswith("lines 1-")
    check_whole(context, sections)


def test_too_many_sections_are_joined_and_keep_their_names(tmp_path: Path) -> None:
    count = MAX_SECTIONS * 2
    text = "".join(f"# Heading {n}\n{PROSE}\n" for n in range(count))
    context, sections = sections_of(tmp_path / "a.md", text)
    assert len(sections) == MAX_SECTIONS
    assert [name for title in titles(sections) for name in title] == [
        f"Heading {n}" for n in range(count)
    ]
    check_whole(context, sections)


def test_a_heading_with_nothing_under_it_joins_the_next(tmp_path: Path) -> None:
    _, sections = sections_of(tmp_path / "a.md", f"# A\n# B\n{PROSE}# C\n{PROSE}# D\n")
    assert titles(sections) == [("A / B",), ("C",)]


def test_pages_of_a_pdf(tmp_path: Path) -> None:
    line = PROSE.strip()
    pages = [("Chapter 1 The start", line), (line,), ("Chapter 2 The end", line)]
    path = tmp_path / "a.pdf"
    path.write_bytes(pdfs.draw(*(pdfs.text(*lines) for lines in pages)))
    context = context_of(path)
    sections = find_sections(context)
    assert [place(context, section) for section in sections] == ["pages 1-2", "page 3"]
    assert titles(sections) == [("Chapter 1 The start",), ("Chapter 2 The end",)]
    check_whole(context, sections)


@pytest.mark.parametrize("text", ["# Only a title\n", "x"])
def test_the_smallest_documents(tmp_path: Path, text: str) -> None:
    context, sections = sections_of(tmp_path / "a.md", text)
    assert len(sections) == 1
    check_whole(context, sections)
