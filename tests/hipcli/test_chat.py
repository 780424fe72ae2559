"""`hip chat`: a loop over one session, piped and at a terminal."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.hipcli.fakes import FakeEngine, run_hip
from tests.hipcli.test_conversation import SavingEngine, engine
from tests.hipcli.test_streams import command

__all__ = ["engine"]

# What a terminal is told when a line can be typed.
READY = b"\x1b[?2004h"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\n")


def test_a_line_is_a_question_that_follows_on(engine: SavingEngine) -> None:
    outcome = run_hip("chat", "letters", stdin=b"Who?\r\n\nWhen?", engine=engine)
    assert (outcome.code, outcome.out) == (0, "It was Ada.\nIt was Ada.\n")
    first, second = engine.requests
    decode = engine.tokenizer.decode
    assert "Who?" in decode(first.question_ids)
    asked = decode(second.question_ids)
    assert asked.index("Who?") < asked.index("It was Ada.") < asked.index("When?")
    assert len(engine.configs) == 1


def test_without_a_cache_turns_are_kept_in_memory() -> None:
    engine = FakeEngine()
    run_hip("chat", "book.txt", "--no-cache", stdin=b"Who?\nWhen?\n", engine=engine)
    assert "Who?" in engine.tokenizer.decode(engine.requests[1].question_ids)
    assert engine.requests[1].cache.directory == engine.requests[0].cache.directory is not None


def test_commands(engine: SavingEngine) -> None:
    typed = b"/cite\n/save\nWho?\n/save novel\n/stats\n/sav x\n/help\n//etc is what?\n/quit\nNo?\n"
    outcome = run_hip("chat", "letters", stdin=typed, engine=engine)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("It was Ada.") == 2
    assert "no passages" in outcome.err
    assert "error: no name given (/save NAME)" in outcome.err
    assert f"session {engine.session_id} is called novel" in outcome.err
    assert "error: no command /sav; did you mean /save?" in outcome.err
    assert "/quit" in outcome.err and "turns: 1" in outcome.err
    last = engine.tokenizer.decode(engine.requests[-1].question_ids)
    assert "Question: /etc is what?" in last and "No?" not in last


def test_a_fork_goes_on_beside_its_session(engine: SavingEngine) -> None:
    outcome = run_hip("chat", "letters", stdin=b"Who?\n/fork other\nWhen?\n", engine=engine)
    assert "a branch of" in outcome.err, outcome.err
    assert engine.requests[0].cache.branch == ""
    assert engine.requests[1].cache.branch != ""


def test_jsonl_numbers_its_answers() -> None:
    events = run_hip("chat", "book.txt", "--jsonl", stdin=b"Who?\nWhen?\n").events
    results = [event for event in events if event["event"] == "result"]
    assert [(row["number"], row["question"]) for row in results] == [(1, "Who?"), (2, "When?")]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ("", 1, "no saved sessions"),
        ("book.txt --json", 2, "--jsonl"),
        ("-", 2, "where the questions come from"),
        ("nowhere.txt", 3, "nowhere.txt"),
        ("--resume abc", 1, "session"),
        ("book.txt --resume=abc", 2, "reads nothing anew"),
    ],
)
def test_failures(words: str, code: int, part: str) -> None:
    outcome = run_hip("chat", *words.split(), stdin=b"Who?\n")
    assert (outcome.code, part in outcome.err) == (code, True), outcome.err


@pytest.mark.parametrize("columns", [20, 80])
def test_at_a_terminal_with_keys_and_interrupts(columns: int) -> None:
    """Ctrl-C ends an answer and not the chat; Ctrl-D ends the chat."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    book = str(Path("book.txt").absolute())
    engine = {"pieces": ["word "] * 40, "delay_s": 0.05}
    process = subprocess.Popen(
        command(engine, "chat", book, "--no-cache"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    shown = b""

    def wait_for(part: bytes, seconds: float = 20) -> None:
        nonlocal shown
        end = time.monotonic() + seconds
        while part not in shown and time.monotonic() < end:
            if select.select([leader], [], [], 0.2)[0]:
                shown += os.read(leader, 65536)
            # Whoever draws asks the terminal where its cursor is.
            if b"\x1b[6n" in shown:
                shown = shown.replace(b"\x1b[6n", b"")
                os.write(leader, b"\x1b[1;1R")
        assert part in shown, shown
        shown = shown.split(part, 1)[1]

    wait_for(READY)
    os.write(leader, b"Who?\r")
    wait_for(b"word word ")
    process.send_signal(2)
    wait_for(READY)
    os.write(leader, b"/stats\r")
    wait_for(b"turns: 0")
    wait_for(READY)
    os.write(leader, b"\x04")
    assert process.wait(timeout=20) == 0
    os.close(leader)
