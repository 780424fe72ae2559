"""Numbers, tables and places in words."""

import io
import re

import pytest

from hipcli import counting, formatting
from hipcli.console import Console
from hipcli.engine.events import Progress
from hipcli.progress import ProgressView, described
from hipcli.prompts import Passage
from hipcli.report import place_in_words
from tests.hipcli.fakes import Terminal


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


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert formatting.duration(seconds) == shown


def test_progress_in_words() -> None:
    event = Progress("prefill", 4096, 2048, 12288, 812.4, 10.0, 45 << 20, 0, 1 << 30)
    whole = "reading: 4,096 of 12,288 tokens (2,048 cached), 812 tok/s, 10 s left"
    assert described(event) == f"{whole}, KV 45.0 MiB GPU 1.0 GiB disk"
    assert described(Progress("vote", 1, 0, 2, float("inf"), None)).endswith("1 of 2 tokens")
    # What matters least is left out where there is little room.
    assert described(event, 80) == whole
    assert described(event, 60) == "reading: 4,096 of 12,288 tokens, 812 tok/s, 10 s left"
    assert described(event, 45) == "reading: 4,096 of 12,288 tokens, 10 s left"
    assert described(event, 35) == "reading: 4,096 of 12,288 tokens"
    assert described(event, 20) == "reading: 33%"


@pytest.mark.parametrize(
    ("width", "has_bar", "shown"),
    [
        (20, False, "reading: 12%"),
        (80, True, "reading: 123,456 of 1,048,576 tokens, 1,234 tok/s, 12 min 30 s left"),
        (120, True, "(65,536 cached), 1,234 tok/s, 12 min 30 s left"),
        (140, True, "12 min 30 s left, KV 4.5 GiB GPU 4.5 GiB disk"),
    ],
)
def test_the_live_line_fits_its_terminal(width: int, has_bar: bool, shown: str) -> None:
    stderr = Terminal(io.BytesIO(), "utf-8", newline="")
    event = Progress("prefill", 123456, 65536, 1 << 20, 1234.0, 750.0, 9 << 29, 0, 9 << 29)
    with ProgressView(Console(None, None, stderr, width=width), True) as view:
        view.advance(event)
    stderr.flush()
    drawn = stderr.buffer.getvalue().decode()  # type: ignore[attr-defined]
    first = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).splitlines()[0].rstrip()
    assert first.endswith(shown) and len(first) <= width
    assert ("\u2501" in first) == has_bar


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
