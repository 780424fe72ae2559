"""Numbers, tables and places in words."""

import pytest

from hipcli.prompts import Passage
from hipcli.runs import counting
from hipcli.terminal import formatting
from hipcli.terminal.report import place_in_words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 終", "plain é 終"),
        ("a\x1b[31mb\x07", "a\\x1b[31mb\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\nb\tc", "a\nb\tc"),
        ("a\rb", "a\\rb"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("e\u0301", "e\u0301"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ],
)
def test_escape_controls(text: str, shown: str) -> None:
    assert formatting.escape_controls(text) == shown


def test_table_is_aligned_and_never_cut() -> None:
    rows = [("a" * 200, "1"), ("終", "22"), ("x\ny", "333")]
    lines = formatting.table(("NAME", "N"), rows, right=(1,)).splitlines()
    assert len(lines) == 4
    assert lines[1] == "a" * 200 + "    1"
    # The wide character takes two cells.
    assert lines[2] == "終" + " " * 198 + "   22"
    assert lines[3].startswith("x y ")


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_size(num_bytes: int, shown: str) -> None:
    assert formatting.size(num_bytes) == shown


def test_a_table_fits_its_terminal_and_loses_nothing() -> None:
    header, rows = ("NAME", "SIZE", "WHAT"), [("a", "12", "one two three four five six")]
    wide = formatting.table(header, rows, right=(1,))
    assert wide == formatting.table(header, rows, right=(1,), width=40)
    assert wide.splitlines()[1] == "a       12  one two three four five six"
    narrow = formatting.table(header, rows, right=(1,), width=30).splitlines()
    assert narrow[1:] == ["a       12  one two three four", " " * 12 + "five six"]
    rows = [("a name that is long", "12", "one two three four five six")]
    blocks = formatting.table(header, rows, width=40).splitlines()
    assert blocks == [
        "a name that is long",
        "  size  12",
        "  what  one two three four five six",
    ]
    for width in (1, 12, 20):
        shown = formatting.table(header, rows, width=width, key=2).split()
        assert shown[:6] == ["one", "two", "three", "four", "five", "six"]
        assert " ".join(shown[6:]) == "name a name that is long size 12"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert formatting.duration(seconds) == shown


@pytest.mark.parametrize(
    ("kind", "page", "label", "last", "shown"),
    [
        ("text", None, None, 3, "a.txt, line 3"),
        ("text", None, None, 9, "a.txt, lines 3-9"),
        ("pdf", 12, "xii", 9, "a.txt, page 12 (xii), lines 3-9"),
        ("pdf", 12, "12", 3, "a.txt, page 12, line 3"),
        ("notebook", 2, "code", 3, "a.txt, cell 2, line 3"),
    ],
)
def test_place_in_words(
    kind: str, page: int | None, label: str | None, last: int, shown: str
) -> None:
    passage = Passage("a.txt", "/a.txt", kind, page, label, 3, last, "text", 0, 1)
    assert place_in_words(passage) == shown


def test_text_is_counted_in_pieces_that_lose_nothing() -> None:
    text = "line\n" * 50_000 + " " * 250_000
    parts = list(counting.pieces(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= counting.PIECE_CHARS
