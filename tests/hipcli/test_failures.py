"""Every way to use `hip` wrongly: its exit code, one line on stderr, nothing but JSON on stdout."""

import json
import shlex
from pathlib import Path

import pytest

from tests.hipcli.fakes import run_hip

NOWHERE = "/nonexistent/file"

# Words after `hip`, exit code, what the line on stderr must contain.
FAILURES = [
    ("", 2, "no command given"),
    ("aks", 2, "No such command 'aks'. Did you mean 'ask'?"),
    ("book.txt Who?", 2, "try hip ask book.txt"),
    ("ask", 2, "no question given"),
    ("ask -", 2, "standard input is a terminal"),
    ("ask - Who?", 2, "standard input is a terminal"),
    ("ask Who?", 2, "no SOURCE given"),
    ("ask book.txt", 2, "the question is missing"),
    ("ask book.txt ''", 2, "the question is empty"),
    ("ask book.txt ' '", 2, "the question is empty"),
    ("ask book.txt Who? --bogus", 2, "--bogus"),
    ("ask book.txt Who? --max-new-tokens", 2, "--max-new-tokens"),
    ("ask book.txt Who? --max-new-tokens many", 2, "--max-new-tokens"),
    ("ask book.txt Who? --max-new-tokens 0", 2, "--max-new-tokens"),
    ("ask book.txt Who? --temperature -1", 2, "--temperature"),
    ("ask book.txt Who? --progress of", 2, "did you mean 'off'?"),
    ("ask book.txt Who? --fit both", 2, "error, head, tail, middle"),
    ("ask book.txt Who? --no-cache --refresh", 2, "exclude one another"),
    ("ask book.txt Who? --no-cache --cached-only", 2, "exclude one another"),
    ("ask book.txt Who? --no-cache --name letters", 2, "exclude one another"),
    ("ask book.txt Who? --refresh --cached-only", 2, "exclude one another"),
    ("ask --resume abc Who? --no-cache", 2, "exclude one another"),
    ("ask book.txt Who? -0", 2, "add --files-from"),
    ("ask book.txt Who? --methd hip", 2, "--method"),
    ("ask book.txt Who? --method hpi", 2, "did you mean 'hip'?"),
    ("ask book.txt Who? --method dense --budget-tokens 9", 2, "no setting budget_tokens"),
    ("ask book.txt Who? --device gpu", 2, "auto, cpu, cuda or cuda:N"),
    ("ask book.txt Who? --encoding utf-88", 2, "utf-88"),
    ("ask book.txt Who? --model nosuch", 1, "nosuch"),
    ("ask book.txt Who? --max-file-size much", 2, "'much' is not a size"),
    (f"ask book.txt Who? --password-file {NOWHERE}", 2, "password file"),
    (f"ask book.txt Who? -o {NOWHERE}", 2, "check the path given to -o"),
    ("ask book.txt Who? -o .", 2, "Is a directory"),
    (f"ask book.txt -Q {NOWHERE}", 2, "question file"),
    ("ask - -Q -", 2, "both want standard input"),
    ("ask --files-from - -Q -", 2, "both want standard input"),
    (f"ask --files-from {NOWHERE} Who?", 2, "--files-from"),
    ("ask --files-from empty.txt Who?", 3, "is empty"),
    ("ask book.txt Who? --resume abc", 2, "--resume reads nothing anew"),
    ("ask --resume abc Who?", 1, "session"),
    (f"ask {NOWHERE} Who?", 3, NOWHERE),
    ("ask empty.txt Who?", 3, "empty"),
    (f"ask book.txt Who? --config {NOWHERE}", 2, "configuration file"),
    ("ask book.txt Who? --config unknown.toml", 2, "did you mean 'max_new_tokens'?"),
    ("ask book.txt Who? --config broken.toml", 2, "not valid TOML"),
    ("ask book.txt Who? --config wrong.toml", 2, "it must be a whole number"),
    ("inspect", 2, "no SOURCE given"),
    (f"inspect {NOWHERE} --count words", 3, NOWHERE),
    ("inspect book.txt --count letters", 2, "letters"),
    ("inspect book.txt", 1, "--count words"),
    ("inspect book.txt --count words extra", 3, "extra"),
    ("sessions", 2, "no command given"),
    ("sessions rm", 2, "no session named"),
    ("sessions show abc", 1, "session"),
    ("models", 2, "no command given"),
    ("models pull", 2, "no model named"),
    ("models rm nosuch", 1, "nosuch"),
    ("models path nosuch", 1, "nosuch"),
    ("methods extra", 2, "extra"),
    ("config", 2, "no command given"),
    ("bench", 2, "no command given"),
    ("bench engine --device tpu", 2, "cpu or cuda"),
]


# Those that nothing needs to be read for.
AT_ONCE = [
    words
    for words, code, _ in FAILURES
    if words.startswith("ask book.txt Who? --") and "--model" not in words and code == 2
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\n")
    Path("empty.txt").write_text("")
    Path("unknown.toml").write_text("max-new-tokens = 3")
    Path("broken.toml").write_text("max_new_tokens =")
    Path("wrong.toml").write_text("max_new_tokens = true")


@pytest.mark.parametrize(("words", "code", "part"), FAILURES)
def test_a_failure_is_one_line(words: str, code: int, part: str) -> None:
    outcome = run_hip(*shlex.split(words))
    assert (outcome.code, outcome.out) == (code, "")
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert outcome.err.endswith(errors[0] + "\n")
    assert part in errors[0]
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(("words", "code", "part"), FAILURES)
def test_a_failure_with_json_is_a_document(words: str, code: int, part: str) -> None:
    outcome = run_hip(*shlex.split(words), "--json")
    assert outcome.code == code
    error = json.loads(outcome.out)["error"]
    assert list(error) == ["code", "message", "hint"]
    assert outcome.out.count("\n") == 1
    assert f"error: {error['message']}" in outcome.err


@pytest.mark.parametrize("words", [*AT_ONCE, "ask book.txt Who? --model nosuch"])
def test_a_mistake_is_told_before_a_document_is_read(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a document was read")

    monkeypatch.setattr("hipcli.documents.read_sources", read)
    outcome = run_hip(*shlex.split(words), stdin=b"")
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1 or "reading" not in outcome.err


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
    monkeypatch.setattr("hipcli.checks._DEVICES", tmp_path)
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


def test_control_characters_of_a_name_are_spelled_out() -> None:
    outcome = run_hip("ask", "\x1b[31mno\nsuch", "Who?")
    assert outcome.code == 3
    assert "\x1b" not in outcome.err
    assert outcome.err.count("\n") == len(outcome.err.splitlines())


def test_one_format_at_a_time() -> None:
    outcome = run_hip("ask", "book.txt", "Who?", "--json", "--jsonl")
    assert outcome.code == 2
    assert outcome.events[-1]["event"] == "error"
