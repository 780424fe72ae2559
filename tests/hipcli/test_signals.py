"""Ctrl-C and SIGTERM in every phase: a real model, a real process, a real terminal."""

import json
import os
import pty
import re
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.models import toy_models
from tests.hipcli.forked_hip import Run, serving, start

QUESTION = "Who wrote the letter?"
ASK = ["ask", "book.txt", QUESTION, "-n", "8"]
# Begins to ask a terminal for a line: pasted text is told apart from typed one.
PROMPTED = b"\x1b[?2004h"
# What stands behind "Interrupted" when it strikes there.
KEPT = {
    "read": r"",
    "load": r"",
    "prefill": r": 1,024 of [\d,]+ tokens are kept; the same command goes on from there",
    "save": r': what was read is saved; hip ask --resume "QUESTION" asks about it',
    "vote": r': what was read is saved; hip ask --resume "QUESTION" asks about it',
    "answer": r': what was read is saved; hip ask --resume "QUESTION" asks about it',
}


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a book, where a server with a tiny model works."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "book.txt").write_text("A letter from Ada to Charles, sent in June.\n" * 60)
    variables = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "TERM": "xterm-256color",
        "HIP_MODEL": str(toy_models.llama(folder / "model")),
        "HIP_DEVICE": "cpu",
        "HIP_CACHE_DIR": "cache",
        "XDG_CONFIG_HOME": str(folder),
        "TRITON_INTERPRET": "1",
    }
    with serving(folder / "s", folder, variables):
        yield folder


def read_terminal(leader: int, until: bytes = b"") -> bytes:
    """What a terminal shows, until it says something or is closed."""
    shown = b""
    while select.select([leader], [], [], 30)[0]:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        shown += piece
        if not piece or (until and until in shown):
            break
    return shown


def begin(kitchen: Path, words: list[str], pause: str = "") -> tuple[Run, int]:
    leader, follower = pty.openpty()
    run = start(kitchen / "s", words, [follower] * 3, pause)
    os.close(follower)
    return run, leader


def run_whole(kitchen: Path, words: list[str]) -> dict:
    """The JSON document of a run that nothing interrupts."""
    reading, writing = os.pipe()
    nowhere = os.open(os.devnull, os.O_RDWR)
    run = start(kitchen / "s", [*words, "--json"], [nowhere, writing, nowhere])
    os.close(writing)
    os.close(nowhere)
    with os.fdopen(reading) as out:
        content = out.read()
    assert run.code() == 0, content
    found: dict = json.loads(content)
    return found


@pytest.fixture(scope="module")
def answer(kitchen: Path) -> str:
    """What a run says that nothing interrupts and that has no session."""
    return str(run_whole(kitchen, [*ASK, "--no-cache"])["answer"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", KEPT)
def test_struck_in_a_phase(
    kitchen: Path, answer: str, tmp_path: Path, phase: str, number: int
) -> None:
    words = [*ASK, "--cache-dir", str(tmp_path / "cache")]
    run, leader = begin(kitchen, words, phase)
    run.paused()
    if number == signal.SIGINT:
        # As a key of the terminal, which sends the signal to the group in its foreground.
        os.write(leader, b"\x03")
        word, code = "Interrupted", 130
    else:
        os.kill(run.pid, number)
        word, code = "Terminated", 143
    shown = read_terminal(leader)
    os.close(leader)
    assert run.code() == code
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    last = [line.strip("\r") for line in text.splitlines() if line.strip()][-1]
    assert re.fullmatch(r"(\^C)?" + word + KEPT[phase], last), text
    assert "Traceback" not in text
    # The terminal gets its cursor back.
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h")
    again = run_whole(kitchen, words)
    assert again["answer"] == answer
    kept = {"read": 0, "load": 0, "prefill": 1024}
    whole = again["usage"]["cached_tokens"] + again["usage"]["prefilled_tokens"]
    expected = kept.get(phase, whole - again["usage"]["question_tokens"])
    # A part that is resumed begins at a border of chunks.
    assert again["usage"]["cached_tokens"] // 512 == expected // 512


def test_a_chat_goes_on_behind_an_interrupted_answer(kitchen: Path, tmp_path: Path) -> None:
    words = ["chat", "book.txt", "-n", "8", "--cache-dir", str(tmp_path / "cache")]
    run, leader = begin(kitchen, words, "answer")
    shown = read_terminal(leader, PROMPTED)
    os.write(leader, b"Who?\r")
    run.paused()
    os.write(leader, b"\x03")
    shown += read_terminal(leader, PROMPTED)
    os.write(leader, b"/quit\r")
    shown += read_terminal(leader)
    os.close(leader)
    assert run.code() == 0
    assert b"Traceback" not in shown, shown.decode()
    assert b"ask, or /help" in shown, shown.decode()
