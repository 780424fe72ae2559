"""`hip` as a process: terminals, pipes, signals, locales. A fake engine answers."""

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ESCAPE = re.compile(rb"\x1b")


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.txt"
    path.write_text("A letter from Ada.\n")
    return str(path)


def command(engine: dict[str, Any], *words: str) -> list[str]:
    return [sys.executable, "-m", "tests.hipcli.fake_hip", json.dumps(engine), *words]


def start(engine: dict[str, Any], *words: str, **options: Any) -> subprocess.Popen[bytes]:
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command(engine, *words), **options)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def in_terminal(engine: dict[str, Any], *words: str, **variables: str) -> tuple[int, bytes]:
    """Runs `hip` with a terminal as stdin, stdout and stderr; returns code and what it showed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(engine, *words),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TERM": "xterm-256color", **variables},
    )
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ready, _, _ = select.select([leader], [], [], 0.1)
        if ready:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(leader)
    return process.wait(timeout=20), shown


def test_a_pipe_gets_no_escape_codes_whatever_the_environment_says(book: str) -> None:
    variables = {**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "TTY_COMPATIBLE": "1"}
    engine = {"pieces": ["[/INST] \x1b[31mred"], "notices": ["careful"]}
    code, out, err = finish(start(engine, "ask", book, "Who?", "-v", env=variables))
    assert code == 0
    assert out == b"[/INST] \x1b[31mred\n"
    assert b"\x1b" not in err and b"\r" not in err
    assert b"warning: careful\n" in err


@pytest.mark.parametrize("columns", ["20", "80", "8000"])
def test_json_and_answers_do_not_know_the_width(book: str, columns: str) -> None:
    engine = {"pieces": ["word " * 1000]}
    variables = {**os.environ, "COLUMNS": columns}
    _, out, _ = finish(start(engine, "ask", book, "Who?", "--json", env=variables))
    assert json.loads(out)["answer"] == "word " * 1000
    code, shown = in_terminal(engine, "ask", book, "Who?", COLUMNS=columns)
    assert code == 0
    assert b"word " * 1000 in shown


def test_a_terminal_sees_progress_and_then_the_answer_alone(book: str) -> None:
    engine = {"pieces": ["It was ", "\x1b[31mAda."], "delay_s": 0.3}
    code, shown = in_terminal(engine, "ask", book, "Who?")
    assert code == 0
    assert b"reading" in shown
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h")
    # After the live line is gone nothing but the answer is written, its escape spelled out.
    assert shown.endswith(b"It was \\x1b[31mAda.\r\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with jobs")
def test_a_stopped_process_leaves_the_terminal_its_cursor(book: str) -> None:
    pid, leader = pty.fork()
    if pid == 0:
        os.chdir(Path(__file__).parents[2])
        os.environ["TERM"] = "xterm-256color"
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])

    def until(text: bytes) -> bytes:
        shown = b""
        while text not in shown:
            assert select.select([leader], [], [], 20)[0], shown
            shown += os.read(leader, 65536)
        return shown

    engine = {"pieces": ["Half "] * 20, "delay_s": 0.1}
    words = command(engine, "ask", book, "Who?", "--json")
    os.write(leader, f"PS1=; bind 'set enable-bracketed-paste off'; {shlex.join(words)}\n".encode())
    shown = until(b"answering\r")
    os.write(leader, b"\x1a")
    shown += until(b"Stopped")
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    os.write(leader, b"fg\n")
    shown = until(b'"warnings": []}')
    assert b'"answer": "Half Half ' in shown
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
    os.write(leader, b"exit\n")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(leader)


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_colours_are_left_out_on_request(book: str, variables: dict[str, str]) -> None:
    code, shown = in_terminal({"delay_s": 0.2}, "ask", book, "Who?", **variables)
    assert code == 0
    assert not re.search(rb"\x1b\[[0-9;]*m", shown.replace(b"\x1b[0m", b""))
    if "TERM" in variables:
        assert b"\x1b" not in shown


def test_standard_input_that_is_a_terminal_gives_a_short_help(book: str) -> None:
    code, shown = in_terminal({}, "ask", "-")
    assert code == 2
    assert shown.count(b"\n") == 1
    assert b"git log | hip ask -" in shown


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_hip_quietly(book: str, unbuffered: str) -> None:
    engine = {"pieces": ["many words "] * 50, "delay_s": 0.02}
    variables = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = start(engine, "ask", book, "Who?", "-q", env=variables)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1) == b"m"
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["ask", "--help"], ["--version"], ["methods"]])
def test_a_reader_that_never_was_is_no_error_either(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start({}, *words, stdout=writing)
    os.close(writing)
    code, _, err = finish(process)
    assert (code, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_stdout_is_said(book: str) -> None:
    with open("/dev/full", "wb") as full:
        code, _, err = finish(start({}, "ask", book, "Who?", "-q", stdout=full))
    assert code == 1
    assert err == b"error: cannot write to standard output: No space left on device\n"
    with open("/dev/full", "wb") as full:
        code, _, err = finish(start({}, "--help", stdout=full))
    assert (code, err) == (1, b"error: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_stderr_is_no_reason_to_fail(book: str) -> None:
    with open("/dev/full", "wb") as full:
        engine = {"noise": "a library's greeting", "notices": ["careful"]}
        code, out, _ = finish(start(engine, "ask", book, "Who?", stderr=full))
    assert (code, out) == (0, b"It was Ada.\n")


def test_a_stdin_that_nobody_closes_is_not_waited_for(book: str) -> None:
    reading, writing = os.pipe()
    try:
        code, out, _ = finish(start({}, "ask", book, "Who?", stdin=reading))
        assert (code, out) == (0, b"It was Ada.\n")
        code, _, err = finish(start({}, "ask", book, stdin=reading))
        assert code == 2
        assert b"the question is missing" in err
    finally:
        os.close(reading)
        os.close(writing)


def test_an_empty_stdin_is_unusable_input() -> None:
    code, out, err = finish(start({}, "ask", "-", "Who?"))
    assert (code, out) == (3, b"")
    assert b"empty" in err


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, b"Interrupted"), (signal.SIGTERM, 143, b"Terminated")],
)
def test_signals(book: str, number: int, code: int, word: bytes) -> None:
    process = start({"pieces": ["Half "] * 100, "delay_s": 0.1}, "ask", book, "Who?", "-q")
    assert process.stdout is not None
    first = process.stdout.read(5)
    began = time.monotonic()
    process.send_signal(number)
    returned, out, err = finish(process)
    assert time.monotonic() - began < 2
    assert (returned, err) == (code, word + b"\n")
    assert (first + out).startswith(b"Half ")
    assert out.endswith(b"\n")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, b"Interrupted"), (signal.SIGTERM, 143, b"Terminated")],
)
@pytest.mark.parametrize("form", ["--json", "--jsonl"])
def test_an_interrupted_answer_is_a_whole_document(
    book: str, number: int, code: int, word: bytes, form: str
) -> None:
    process = start({"pieces": ["Half "] * 100, "delay_s": 0.1}, "ask", book, "Who?", form)
    assert process.stderr is not None
    # The line that reading begins; the answer follows well within a second.
    process.stderr.readline()
    time.sleep(1)
    process.send_signal(number)
    returned, out, err = finish(process)
    assert (returned, err.splitlines()[-1]) == (code, word)
    document = json.loads(out.splitlines()[-1])
    assert document["finish_reason"] == "interrupted"
    assert document["answer"].startswith("Half ")
    assert document["usage"]["generated_tokens"] < 100


def test_a_file_gets_no_half_answer(book: str, tmp_path: Path) -> None:
    engine = {"pieces": ["Half "] * 100, "delay_s": 0.1}
    process = start(engine, "ask", book, "Who?", "-o", str(tmp_path / "answer.txt"))
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert not (tmp_path / "answer.txt").exists()


def test_a_locale_without_utf8_loses_no_answer(book: str, tmp_path: Path) -> None:
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    engine = {"pieces": ["終 😀"]}
    code, out, _ = finish(start(engine, "ask", book, "Who?", env=variables))
    assert (code, out) == (0, b"\\u7d42 \\U0001f600\n")
    _, out, _ = finish(start(engine, "ask", book, "Who?", "--json", env=variables))
    assert json.loads(out.decode("utf-8"))["answer"] == "終 😀"
    target = tmp_path / "answer.txt"
    finish(start(engine, "ask", book, "Who?", "-o", str(target), env=variables))
    assert target.read_text("utf-8") == "終 😀\n"


def test_what_libraries_print_never_reaches_stdout(book: str) -> None:
    engine = {"noise": "a library's greeting\n", "notices": ["careful"]}
    code, out, err = finish(start(engine, "ask", book, "Who?", "--json", "-vv"))
    assert code == 0
    assert json.loads(out)["warnings"][0]["message"] == "careful"
    assert b"a library's greeting" in err


def test_a_sign_of_life_within_a_second(book: str) -> None:
    waits = []
    # The best of three: what counts is hip's own time, not the load of the machine.
    for _ in range(3):
        began = time.monotonic()
        process = start({"delay_s": 0.1}, "ask", book, "Who?")
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"reading")
        waits.append(time.monotonic() - began)
        finish(process)
    assert min(waits) < 1.0


def test_a_second_signal_does_not_wait(book: str) -> None:
    engine = {"pieces": ["Half "] * 100, "delay_s": 0.1, "linger_s": 30}
    process = start(engine, "ask", book, "Who?", "-q")
    assert process.stdout is not None
    process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert finish(process)[0] == 130
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_streams_that_are_closed_from_the_start(book: str, closed: str) -> None:
    words = " ".join(map(shlex.quote, command({}, "ask", book, "Who?", "-q")))
    done = subprocess.run(
        ["sh", "-c", f"{words} {closed}"], capture_output=True, timeout=20, check=False
    )
    if closed.startswith(">&-"):
        assert done.returncode == 1
        assert done.stderr in (
            b"",
            b"error: standard output is closed, the answer has nowhere to go\n",
        )
    else:
        assert (done.returncode, done.stdout) == (0, b"It was Ada.\n")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--progress", "off"], False),
        (["-q", "--progress", "on"], True),
        (["-q"], False),
        ([], True),
    ],
)
def test_progress_on_request(book: str, words: list[str], shown: bool) -> None:
    _, _, err = finish(start({}, "ask", book, "Who?", *words))
    assert (b"reading" in err) == shown
