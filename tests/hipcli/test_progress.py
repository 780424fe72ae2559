"""What stderr shows of work: one live line on a terminal, plain lines elsewhere."""

import io
import re
from collections.abc import Callable

import pytest

from hipcli.engine.events import Progress
from hipcli.terminal.console import Console
from hipcli.terminal.progress import ProgressView, described
from tests.hipcli.fakes import Terminal


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


def test_plain_lines_are_few_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.setenv(name, "1")
    now, err, told_at = 0.0, io.StringIO(), []
    with ProgressView(Console(None, None, err), True, clock=lambda: now) as view:
        view.phase("prefill")
        for step in range(300):
            before = err.getvalue()
            view.advance(Progress("prefill", step, 0, 300, 10.0, 30.0 - step / 10))
            told_at += [now] if err.getvalue() != before else []
            now += 0.1
    lines = err.getvalue().splitlines()
    # The first line comes at once.
    assert lines[0] == "reading into the model"
    assert len(lines) == 1 + len(told_at) == 6
    assert min(b - a for a, b in zip([0.0, *told_at], told_at, strict=False)) >= 5.0 - 1e-9
    assert "\x1b" not in err.getvalue() and "\r" not in err.getvalue()


def test_what_came_too_early_for_a_line_gets_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    fire: list[Callable[[], None]] = []

    class Timer:
        def __init__(self, wait_s: float, told: Callable[[], None]) -> None:
            waits.append(wait_s)
            fire.append(told)

        def start(self) -> None: ...

        def cancel(self) -> None:
            fire.clear()

    monkeypatch.setattr("threading.Timer", Timer)
    now, err = 100.0, io.StringIO()
    with ProgressView(Console(None, None, err), True, clock=lambda: now) as view:
        view.phase("reading 1 source")
        now += 1.0
        view.phase("load")
        view.phase("counting tokens")
        # One timer, however many lines it is too early for; it tells what is being done then.
        assert waits == [4.0]
        now += 4.0
        fire.pop()()
        assert err.getvalue() == "reading 1 source\ncounting tokens\n"
        now += 1.0
        view.phase("answer")
        view.answer_begins()
        assert not fire, "no line within the answer"
        view.phase("prefill")
    assert not fire
    assert err.getvalue().count("\n") == 2


def test_a_terminal_may_be_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(None, None, None)
    for columns in ("120", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        assert console.width == int(columns)


class Fading:
    """An event after which the next phase is shown whenever anything of it is looked at."""

    def __init__(self, event: Progress, view: ProgressView) -> None:
        self._event, self._view = event, view

    def __getattr__(self, name: str) -> object:
        self._view.phase("save")
        return getattr(self._event, name)


def test_the_next_phase_may_come_while_the_line_is_drawn() -> None:
    stderr = Terminal(io.BytesIO(), "utf-8", newline="")
    event = Progress("prefill", 1, 0, 9, 1234.0, 750.0)
    with ProgressView(Console(None, None, stderr, width=80), True) as view:
        view.advance(Fading(event, view))  # type: ignore[arg-type]
        assert view._live is not None
        view._live.refresh()
    stderr.flush()
    assert b"1 of 9 tokens" in stderr.buffer.getvalue()  # type: ignore[attr-defined]


def test_nothing_is_shown_unasked() -> None:
    for stderr in (io.StringIO(), Terminal(io.BytesIO(), "utf-8")):
        with ProgressView(Console(None, None, stderr), False) as view:
            view.phase("prefill")
            view.reading(0, 3, "book.txt")
        stderr.seek(0)
        assert stderr.read() == ""
