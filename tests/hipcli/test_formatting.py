"""Numbers, tables, cuts and places."""

import pytest
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Progress

from hipcli import counting, fit, formatting, places
from hipcli.progress import described


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
    event = Progress("prefill", 4096, 2048, 12288, 812.4, 10.0, 45 << 20)
    assert described(event) == (
        "reading into the model: 4,096 of 12,288 tokens (2,048 cached), 812 tok/s, 10 s left, "
        "KV 45.0 MiB"
    )
    assert described(Progress("vote", 1, 0, 2, float("inf"), None, 0)).endswith("1 of 2 tokens")


@pytest.mark.parametrize("mode", ["head", "tail", "middle"])
@pytest.mark.parametrize("kept", [1, 2, 63, 99])
def test_a_cut_leaves_exactly_what_fits(mode: str, kept: int) -> None:
    cut = fit.plan(105, 5, 7, 3, kept + 5 + 7 + 3, mode)
    assert 105 - cut.tokens == kept + 5
    assert cut.start >= 5
    # Every token of the cut context is found again in the whole one, in order and only once.
    spans = cut.whole(0, 105 - cut.tokens)
    whole = [position for start, end in spans for position in range(start, end)]
    assert whole == [*range(cut.start), *range(cut.end, 105)]
    assert (mode == "head") == (cut.end == 105)
    assert (mode == "tail") == (cut.start == 5) or (mode, kept) == ("middle", 1)


def test_what_fits_is_not_cut() -> None:
    assert fit.plan(105, 5, 7, 3, 115, "error").tokens == 0
    assert fit.plan(105, 5, 7, 3, None, "error").tokens == 0
    with pytest.raises(DoesNotFitError):
        fit.plan(105, 5, 7, 3, 114, "error")
    with pytest.raises(DoesNotFitError):
        fit.plan(105, 5, 7, 3, 15, "head")


def test_places_survive_a_manifest() -> None:
    def locate(start: int, end: int) -> list[places.Place]:
        # Tokens 0-99 are page 1 of a.pdf, ten tokens a line; the rest is b.txt.
        found = []
        if start < 100:
            last = min(end, 100) - 1
            found.append(places.Place("a.pdf", 1, "i", start // 10 + 1, last // 10 + 1, ""))
        if end > 100:
            first = max(start, 100) - 100
            last = end - 101
            found.append(places.Place("b.txt", None, None, first // 10 + 1, last // 10 + 1, ""))
        return found

    recorded = places.record(locate, 0, 200)
    again = places.from_record(recorded, lambda start, end: f"{start}-{end}")
    assert again(0, 200) == [
        places.Place("a.pdf", 1, "i", 1, 10, "0-200"),
        places.Place("b.txt", None, None, 1, 10, "0-200"),
    ]
    # A recorded span of 64 tokens is the finest that is remembered.
    assert again(0, 64) == [places.Place("a.pdf", 1, "i", 1, 7, "0-64")]
    assert str(again(0, 64)[0]) == "a.pdf, page 1 (i), lines 1-7"


def test_text_is_counted_in_pieces_that_lose_nothing() -> None:
    text = "line\n" * 50_000 + " " * 250_000
    parts = list(counting.pieces(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= counting.PIECE_CHARS
