"""Which source of a setting wins, and what a configuration file may hold."""

import re
from pathlib import Path

import pytest

import hipcli.engine
import hipcli.kernels
from hipcli.config import options
from hipcli.config.words import parse_size, read_password
from hipcli.engine.errors import UsageError
from tests.hipcli.fakes import FakeEngine, run_hip


@pytest.fixture(autouse=True)
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\n")


def user_file(content: str) -> None:
    file = options.user_config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def longest_answer(*words: str) -> int:
    engine = FakeEngine()
    outcome = run_hip("ask", "book.txt", "Who?", *words, engine=engine)
    assert outcome.code == 0, outcome.err
    tokens: int = engine.requests[0].generation.max_new_tokens
    return tokens


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert longest_answer() == 512
    user_file("max_new_tokens = 1")
    assert longest_answer() == 1
    Path("project.toml").write_text("max_new_tokens = 2")
    assert longest_answer("--config", "project.toml") == 2
    monkeypatch.setenv("HIP_MAX_NEW_TOKENS", "3")
    assert longest_answer("--config", "project.toml") == 3
    assert longest_answer("--config", "project.toml", "--max-new-tokens", "4") == 4


def test_verbose_names_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    user_file("seed = 5")
    Path("project.toml").write_text("system = 'Be brief.'")
    monkeypatch.setenv("HIP_TEMPERATURE", "0.25")
    err = run_hip("ask", "book.txt", "Who?", "-v", "-n", "9", "--config", "project.toml").err
    assert "max_new_tokens = 9 (command line)" in err
    assert "temperature = 0.25 (HIP_TEMPERATURE)" in err
    assert "system = Be brief. (project.toml)" in err
    assert f"seed = 5 ({options.user_config_file()})" in err
    assert "(default)" not in err
    assert "method = hip (default)" in run_hip("ask", "book.txt", "Who?", "-vv").err


def test_the_variable_for_a_project_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("project.toml").write_text("max_new_tokens = 2")
    monkeypatch.setenv("HIP_CONFIG", "project.toml")
    assert longest_answer() == 2


def test_a_configuration_beside_the_documents_is_not_loaded() -> None:
    Path("hip.toml").write_text("max_new_tokens = 2")
    assert longest_answer() == 512


def test_flags_of_every_kind_from_a_file() -> None:
    Path("project.toml").write_text(
        "quiet = true\njson = true\ninclude = ['*.txt']\ntemperature = 1\nmax_file_size = '1MiB'\n"
        "gitignore = false\nmodels_dir = 'elsewhere'\n"
    )
    engine = FakeEngine()
    outcome = run_hip("ask", "book.txt", "Who?", "--config", "project.toml", engine=engine)
    assert outcome.json["answer"] == "It was Ada."
    assert outcome.err == ""
    assert engine.configs[0].models_dir == Path("elsewhere")


@pytest.mark.parametrize(
    "content",
    ["config = 'x'", "include = 'x'", "include = [1]", "seed = 1.5", "model = 3", "quiet = 1"],
)
def test_wrong_keys_and_kinds(content: str) -> None:
    Path("project.toml").write_text(content)
    outcome = run_hip("ask", "book.txt", "Who?", "--config", "project.toml")
    assert outcome.code == 2
    assert content.split()[0] in outcome.err and "project.toml" in outcome.err


def test_help_does_not_mind_a_broken_configuration() -> None:
    user_file("nonsense")
    assert run_hip("ask", "--help").code == 0
    assert run_hip("ask", "book.txt", "Who?").code == 2


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("4096", 4096), ("2MiB", 2 << 20), ("1.5G", 3 << 29), ("10 kb", 10240), ("3B", 3)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text, "--max-size") == num_bytes


@pytest.mark.parametrize("text", ["", "-1", "1e3", "MiB", "1 PiB", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text, "--max-size")


def test_a_password_is_the_first_line_as_it_stands() -> None:
    Path("password").write_bytes("pä ss \r\nsecond\n".encode())
    assert read_password(Path("password")) == "pä ss "
    assert read_password(None) is None


def test_a_password_is_never_shown() -> None:
    Path("password").write_text("hunter2\n")
    words = ["ask", "book.txt", "Who?", "--password-file", "password", "-vv", "--json"]
    outcome = run_hip(*words)
    assert outcome.code == 0
    assert "hunter2" not in outcome.out + outcome.err


def test_every_option_has_a_variable_and_a_flag_of_its_name() -> None:
    names = [option.name for option in options.ALL]
    assert len(names) == len(set(names))
    for option in options.ALL:
        flags = option.flags or (f"--{option.name.replace('_', '-')}",)
        assert f"--{option.name.replace('_', '-')}" in flags[0].split("/")
        assert option.variable == f"HIP_{option.name.upper()}"


def test_the_environment_is_looked_at_in_one_place() -> None:
    roots = {hipcli.__path__[0], hipcli.engine.__path__[0], hipcli.kernels.__path__[0]}
    files = [file for root in roots for file in Path(root).rglob("*.py")]
    looking = [file for file in files if re.search(r"os\.environ|getenv", file.read_text("utf-8"))]
    assert [file.name for file in looking] == ["options.py"]
