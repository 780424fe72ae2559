"""What holds for every command alike: signals, pipes, stdin, locales, narrow terminals."""

import io
import os
import re
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from hipcli.app import run
from hipcli.terminal.console import Console
from tests.hipcli.fakes import FakeEngine, Outcome, installed, run_hip
from tests.hipcli.saved import save
from tests.hipcli.test_streams import in_terminal

ASKING = ["ask book.txt Who?", "summarize book.txt", "chat book.txt --no-cache"]
SHOWING = [
    "sessions list",
    "sessions show letters",
    "models path",
    "methods",
    "eval --list",
    "config show",
    "inspect book.txt --count words",
    "inspect book.txt --text",
]
SIGNALS = [
    (signal.SIGINT, 130, "Interrupted", "interrupted"),
    (signal.SIGTERM, 143, "Terminated", "terminated"),
]
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("# Letters\n\nA letter from Ada to 終.\n", "utf-8")
    save(tmp_path / "hip-cache", "終.txt", "letters")


class Signalled(FakeEngine):
    """Gets a signal in the middle of one kind of work, as if it came from outside."""

    def __init__(self, number: int, phase: str) -> None:
        super().__init__(pieces=("Half ", "of ", "it."), on_piece=self._piece)
        self.number = number
        self.phase = phase
        self.pieces_begun = 0

    def strike(self, phase: str) -> None:
        if phase == self.phase:
            os.kill(os.getpid(), self.number)

    def _piece(self) -> None:
        self.pieces_begun += 1
        if self.pieces_begun == 2:
            self.strike("answer")

    def ask(self, request: object) -> Iterator[object]:  # type: ignore[override]
        for event in super().ask(request):
            yield event
            if type(event).__name__ == "Progress":
                self.strike("prefill")


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> list[Signalled]:
    """The engine in it is struck while documents are read, and while a model is loaded."""
    engines: list[Signalled] = []
    from hipcli.terminal.progress import ProgressView

    shown, begun = ProgressView.reading, ProgressView.phase

    def reading(view: ProgressView, done: int, total: int, name: str) -> None:
        engines[0].strike("read")
        shown(view, done, total, name)

    def phase(view: ProgressView, name: str, detail: str = "") -> None:
        begun(view, name, detail)
        if name == "counting tokens":
            engines[0].strike("load")

    monkeypatch.setattr(ProgressView, "reading", reading)
    monkeypatch.setattr(ProgressView, "phase", phase)
    return engines


@pytest.mark.parametrize("words", ASKING)
@pytest.mark.parametrize("phase", ["read", "load", "prefill", "answer"])
@pytest.mark.parametrize(("number", "code", "said", "name"), SIGNALS)
def test_a_signal_in_every_phase(
    words: str, phase: str, number: int, code: int, said: str, name: str, strikes: list[Signalled]
) -> None:
    def outcome(*options: str) -> Outcome:
        strikes[:] = [Signalled(number, phase)]
        return run_hip(*words.split(), *options, stdin=b"Who?\n", engine=strikes[0])

    plain = outcome()
    assert plain.code == code
    # Half an answer stands on the screen already, with the end of its line.
    half = phase == "answer" and not words.startswith("summarize")
    assert plain.out == ("Half \n" if half else "")
    assert plain.err.splitlines()[-1] == said
    last = outcome("--jsonl").events[-1]
    if last["event"] == "result":
        assert half and last["finish_reason"] == "interrupted"
    else:
        assert last["error"] == {"code": name, "message": said, "hint": ""}


@pytest.mark.parametrize("words", [*ASKING, *SHOWING])
def test_a_closed_pipe_is_quiet(words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(b"Who?\n"))
    with installed(FakeEngine()), os.fdopen(writing, "w") as out, redirect_stdout(out):
        code = run([*words.split(), "-q"], Console(stdin, out, err, width=80))
    assert (code, err.getvalue()) == (141, "")


class Untouchable(io.StringIO):
    """A pipe that somebody else holds open: reading from it would never end."""

    def read(self, *_: object) -> str:
        raise AssertionError("stdin was read")

    readline = __next__ = read  # type: ignore[assignment]

    @property
    def buffer(self) -> io.BytesIO:
        raise AssertionError("stdin was read")


@pytest.mark.parametrize("words", [*ASKING[:2], *SHOWING, "models list", "--version"])
def test_a_stdin_that_is_not_asked_for_is_not_read(words: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with installed(FakeEngine()), redirect_stdout(out):
        code = run(words.split(), Console(Untouchable(), out, err, width=80))
    assert code == 0, err.getvalue()


@pytest.mark.parametrize("words", [*ASKING, *SHOWING])
def test_a_locale_without_utf8(words: str) -> None:
    engine = FakeEngine(pieces=("終 😀",))
    outcome = run_hip(*words.split(), stdin=b"Who?\n", engine=engine, encoding="ascii")
    assert outcome.code == 0
    if words in ASKING:
        assert "\\u7d42 \\U0001f600\n" in outcome.out
    if words == "sessions list":
        assert "\\u7d42.txt" in outcome.out


@pytest.mark.parametrize("columns", ["20", "80"])
@pytest.mark.parametrize(
    "words",
    ["ask book.txt Who?", "summarize book.txt", "sessions list", "eval --list", "ask --help"],
)
def test_a_terminal_of_any_width(words: str, columns: str) -> None:
    answer = "many words " * 20
    engine = {"pieces": [answer], "delay_s": 0.15}
    typed = words.replace("book.txt", str(Path("book.txt").absolute())).split()
    code, shown = in_terminal(engine, *typed, COLUMNS=columns, NO_COLOR="1")
    assert code == 0
    assert b"Traceback" not in shown
    assert not COLOUR.search(shown.replace(b"\x1b[0m", b""))
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h")
    if "book.txt" in words:
        assert answer.strip().encode() in shown
    # The live line never grows into a second one, which could not be taken away again.
    for line in re.findall(rb"\r\x1b\[2K([^\r\n]*)", shown):
        text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", line).decode()
        assert "many words" in text or len(text) <= int(columns)
