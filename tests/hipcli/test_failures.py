"""Every way to use `hip` wrongly: its exit code, one line on stderr, nothing but JSON on stdout."""

import shlex
from pathlib import Path

import pytest

from hipcli.engine.errors import (
    DoesNotFitError,
    HipError,
    InputError,
    ModelError,
    NotCachedError,
    SessionError,
    UsageError,
)
from tests.hipcli.failures import ALL, OPTIONS, PDFS, WORDS, fill
from tests.hipcli.fakes import FakeEngine, Outcome, run_hip

# Those that nothing needs to be read for.
AT_ONCE = [words for words, _, _ in [*WORDS, *OPTIONS]]

# What an engine may come to, the exit code, and the `code` of the JSON error.
ENDS: list[tuple[BaseException, int, str]] = [
    (HipError("the model said nothing", "try another one"), 1, "failure"),
    (ModelError("a weight is missing"), 1, "model"),
    (SessionError("the session is of a newer version"), 1, "session"),
    (RuntimeError("an index is out of range\nin some layer"), 1, "internal"),
    (OSError(5, "Input/output error", "/somewhere"), 1, "failure"),
    (UsageError("--kv-dtype fp8_e4m3 needs a GPU"), 2, "usage"),
    (InputError("the document changed meanwhile"), 3, "input_unusable"),
    (DoesNotFitError("it takes 9 GiB, 8 GiB are free"), 4, "does_not_fit"),
    (MemoryError(), 4, "does_not_fit"),
    (NotCachedError("no saved session matches"), 5, "not_cached"),
    (KeyboardInterrupt(), 130, "interrupted"),
]
ASKING = ["ask book.txt Who?", "ask book.txt --batch questions.jsonl", "summarize book.txt"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)


def error_line(outcome: Outcome) -> str:
    """The only line on stderr that tells of an error, which must be the last."""
    *before, last = outcome.err.splitlines()
    assert outcome.err.endswith("\n") and "Traceback" not in outcome.err
    assert not [line for line in before if line.startswith("error: ")]
    return last


@pytest.mark.parametrize(("words", "code", "part"), ALL)
def test_a_failure_is_one_line(words: str, code: int, part: str) -> None:
    outcome = run_hip(*shlex.split(words))
    assert (outcome.code, outcome.out) == (code, "")
    line = error_line(outcome)
    assert line.startswith("error: ") and part in line
    if words in AT_ONCE:
        # Reading documents would have been told.
        assert outcome.err == line + "\n"


@pytest.mark.parametrize(("words", "code", "part"), [*ALL, *PDFS])
def test_a_failure_with_json_is_a_document(words: str, code: int, part: str) -> None:
    form = "--jsonl" if words.startswith("chat") else "--json"
    typed = shlex.split(words)
    # An option that lacks its value must not find one.
    at_option = typed and typed[-1][:1] == "-" and typed[-1][1:2].strip("0123456789")
    typed.insert(len(typed) - bool(at_option), form)
    outcome = run_hip(*typed)
    assert outcome.code == code
    document = outcome.events[-1]
    assert [key for key in document if key != "event"] == ["schema_version", "error"]
    error = document["error"]
    assert list(error) == ["code", "message", "hint"]
    assert "\n" not in error["message"] + error["hint"]
    assert len(outcome.events) == 1 or form == "--jsonl"
    assert error_line(outcome).startswith(f"error: {error['message']}")


@pytest.mark.parametrize("words", ASKING)
@pytest.mark.parametrize(("end", "code", "name"), ENDS, ids=[name for _, _, name in ENDS])
def test_an_engine_that_fails(words: str, end: BaseException, code: int, name: str) -> None:
    outcome = run_hip(*words.split(), engine=FakeEngine((), failure=end))
    # A batch has repeated its first question by then.
    assert (outcome.code, outcome.out) == (code, "> Who?\n" if "--batch" in words else "")
    assert error_line(outcome).startswith("error: " if code < 130 else "Interrupted")
    outcome = run_hip(*words.split(), "--json", engine=FakeEngine((), failure=end))
    document = outcome.json
    # A question of a batch that does not fit is an answer of the document; the others still come.
    error = document["error"] if "error" in document else document["answers"][0]["error"]
    assert (outcome.code, error["code"]) == (code, name)
    outcome = run_hip(*words.split(), "--jsonl", engine=FakeEngine((), failure=end))
    last = outcome.events[-1]
    assert (outcome.code, last["event"], last["error"]) == (code, "error", error)


def test_a_chat_that_fails() -> None:
    for end, code, name in ENDS:
        engine = FakeEngine((), failure=end)
        words = ("chat", "book.txt", "--no-cache", "--jsonl")
        outcome = run_hip(*words, stdin=b"Who?\n", engine=engine)
        assert (outcome.code, outcome.events[-1]["error"]["code"]) == (code, name)
        error_line(outcome)


def test_too_many_tokens_name_both_numbers() -> None:
    for words in ("ask book.txt Who?", "summarize book.txt", "chat book.txt"):
        outcome = run_hip(*words.split(), "--context-limit", "20", stdin=b"Who?\n")
        assert (outcome.code, outcome.out) == (4, "")
        assert "the limit is 20" in error_line(outcome)


@pytest.mark.parametrize("words", ["ask latin.txt Who? --encoding ascii", "ask partial.pdf Who?"])
def test_partial_input_is_a_warning_unless_strict(words: str) -> None:
    outcome = run_hip(*words.split())
    assert (outcome.code, outcome.out) == (0, "It was Ada.\n")
    assert [line[:8] for line in outcome.err.splitlines()].count("warning:") == 1
    assert run_hip(*words.split(), "--strict").code == 3


def test_a_traceback_shows_no_values_and_only_with_debug() -> None:
    engine = FakeEngine((), failure=RuntimeError("an index is out of range"))
    plain = run_hip("ask", "book.txt", "Who wrote it?", engine=engine)
    assert "run again with --debug" in error_line(plain)
    told = run_hip("ask", "book.txt", "Who wrote it?", "--debug", "--json", engine=engine)
    assert "Traceback" in told.err and told.json["error"]["code"] == "internal"
    assert "Who wrote it?" not in told.err and "letter from Ada" not in told.err


def test_a_file_gets_nothing_of_a_failure() -> None:
    for options in ((), ("--json",), ("--jsonl",)):
        engine = FakeEngine(failure=HipError("the model said no more"))
        outcome = run_hip("ask", "book.txt", "Who?", "-o", "answer.txt", *options, engine=engine)
        assert outcome.code == 1 and not Path("answer.txt").exists()
        assert ("error" in outcome.json) if options else outcome.out == ""


@pytest.mark.parametrize(
    ("files", "version", "part"),
    [((), "2.13.0", "this machine has no GPU"), (("kfd",), "2.13.0+cpu", "without GPU support")],
)
def test_a_gpu_that_is_not_here_is_told_at_once(
    files: tuple[str, ...], version: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("hipcli.runs.checks._DEVICES", tmp_path)
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    for device in ("cuda", "cuda:1"):
        outcome = run_hip("ask", "book.txt", "Who?", "--device", device)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert part in outcome.err and f"--device {device}" in outcome.err


def test_a_warning_names_its_file_once() -> None:
    for words in (["ask", "book.txt", "empty.txt", "Who?"], ["inspect", "book.txt", "empty.txt"]):
        outcome = run_hip(*words, *(["--count", "words"] if words[0] == "inspect" else []))
        warned = [line for line in outcome.err.splitlines() if line.startswith("warning: ")]
        assert [line.count("empty.txt") for line in warned] == [1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_names_the_file() -> None:
    outcome = run_hip("ask", "book.txt", "Who?", "-q", "-o", "/dev/full")
    assert outcome.code == 1
    assert outcome.err == "error: cannot write /dev/full: No space left on device\n"


def test_an_option_from_elsewhere_is_blamed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_MAX_NEW_TOKENS", "many")
    assert "from HIP_MAX_NEW_TOKENS" in run_hip("ask", "book.txt", "Who?").err
    monkeypatch.delenv("HIP_MAX_NEW_TOKENS")
    Path("zero.toml").write_text("max_new_tokens = 0")
    outcome = run_hip("ask", "book.txt", "Who?", "--config", "zero.toml")
    assert outcome.code == 2
    assert "from zero.toml" in outcome.err


def test_json_of_the_environment_tells_of_early_failures_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HIP_JSON", "1")
    for words in ("ask book.txt Who? --bogus", "aks", "sessions", "sessions show abc"):
        assert list(run_hip(*words.split()).json) == ["schema_version", "error"]
    assert run_hip("ask", "--jsonl", "--bogus").events[-1]["event"] == "error"


def test_control_characters_of_a_name_are_spelled_out() -> None:
    outcome = run_hip("ask", "\x1b[31mno\nsuch", "Who?")
    assert outcome.code == 3
    assert "\x1b" not in outcome.err
    assert outcome.err.count("\n") == len(outcome.err.splitlines())


def test_one_format_at_a_time() -> None:
    outcome = run_hip("ask", "book.txt", "Who?", "--json", "--jsonl")
    assert outcome.code == 2
    assert outcome.events[-1]["event"] == "error"
