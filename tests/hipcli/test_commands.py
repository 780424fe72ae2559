"""The commands beside `hip ask`."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hipcli.engine.errors import ModelError
from hipcli.version import __version__
from tests.hipcli.fakes import FakeEngine, FakeTokenizer, run_hip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\nTo Charles.\n")


EVERY = [
    ("ask book.txt Who?", 0),
    ("ask nowhere.txt Who?", 3),
    ("inspect book.txt --count words", 0),
    ("inspect nowhere.txt --count words", 3),
    ("sessions list", 0),
    ("sessions show", 1),
    ("sessions path", 0),
    ("models list", 0),
    ("models path", 0),
    ("models rm nosuch", 1),
    ("methods", 0),
    ("eval --list", 0),
    ("eval --tasks nosuch", 2),
    ("doctor", 1),
]


@pytest.mark.parametrize(("words", "code"), EVERY)
def test_json_is_pure_on_every_command(words: str, code: int) -> None:
    outcome = run_hip(*words.split(), "--json", "-vv")
    assert outcome.code == code
    assert outcome.json["schema_version"] == 1
    assert ("error" in outcome.json) == (code != 0 and words != "doctor")


def test_version_and_help() -> None:
    assert run_hip("--version").out == f"hip {__version__}\n"
    shown = run_hip("--help").out
    commands = "ask summarize inspect models sessions methods eval bench chat config doctor"
    for command in commands.split():
        assert f"\n  {command} " in shown


@pytest.mark.parametrize(
    "words", ["ask", "inspect", "doctor", "methods", "eval", "sessions rm", "models pull"]
)
def test_a_help_page_shows_examples_before_options(words: str) -> None:
    shown = run_hip(*words.split(), "--help").out
    assert shown.startswith(f"Usage: hip {words.split()[0]}")
    assert 0 < shown.index(f"\n  hip {words}") < shown.index("--help")
    assert max(map(len, shown.splitlines())) <= 80


def test_inspect_counts_words_without_a_model() -> None:
    Path("empty.txt").write_text("")
    outcome = run_hip("inspect", "book.txt", "empty.txt", "--count", "words")
    lines = outcome.out.splitlines()
    header = "TYPE PAGES WORDS SIZE ENCODING STATUS PATH"
    assert lines[0].split() == header.split()
    assert lines[1].split() == ["text", "-", "6", "31", "B", "utf-8", "read", "book.txt"]
    assert lines[2].endswith("skipped  empty.txt (empty file (0 bytes))")
    assert lines[-1].startswith("1 file, 6 words, 31 B")


def test_inspect_json_has_the_agreed_shape() -> None:
    document = run_hip("inspect", "book.txt", "--count", "words", "--json").json
    assert {"schema_version", "model", "inputs", "totals", "cache", "warnings"} <= set(document)
    assert document["totals"] == {"files": 1, "pages": 0, "bytes": 31, "tokens": None, "words": 6}
    assert document["cache"] == {"bytes_needed": None, "fits": None}
    assert document["inputs"][0]["status"] == "read"


def test_inspect_counts_tokens_and_bytes_of_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Folder:
        name: str = "tiny"
        path: Path = tmp_path / "model"
        revision: str = "1"
        format: str = "safetensors"

    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1}))
    monkeypatch.setattr("hipcli.engine.models.resolve", lambda name, models_dir: Folder())
    monkeypatch.setattr("hipcli.engine.tokenizer.load_tokenizer", lambda folder: FakeTokenizer())
    document = run_hip("inspect", "book.txt", "--json").json
    assert document["model"] == {"id": "tiny", "revision": "1", "format": "safetensors"}
    assert document["totals"]["tokens"] == document["inputs"][0]["tokens"] == 31
    # 2 layers, 1 head of 8 channels, 2 bytes a number; pages of 64 keys and values and a summary.
    needed = document["cache"]["bytes_needed"]
    assert needed % (2 * 8 * 2 * (2 * 64 + 2)) == 0
    assert 0 < needed <= 2 * 8 * 2 * (2 * 64 + 2) * 4
    assert document["cache"]["fits"] is True
    assert "fits" in run_hip("inspect", "book.txt").out


def test_inspect_text_is_what_the_model_would_get() -> None:
    shown = run_hip("inspect", "book.txt", "--text", "--count", "words").out
    assert "A letter from Ada.\nTo Charles.\n" in shown


def test_hosted_vocabularies_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    outcome = run_hip("inspect", "book.txt", "--count", "o200k_base")
    assert outcome.code == 1
    assert "o200k_base is not on this machine" in outcome.err


@dataclass(frozen=True)
class Model:
    name: str
    path: Path
    revision: str = "1"
    format: str = "safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that has smollm2 alone; returns what was pulled."""
    pulled: list[str] = []

    def resolve(name: str, *, models_dir: Path) -> Model:
        if name not in pulled:
            raise ModelError(f"model {name!r} is not on this machine", f"hip models pull {name}")
        return Model(name, models_dir / name)

    def pull(name: str, *, models_dir: Path, progress: Any) -> Model:
        if name != "smollm2":
            raise ModelError(f"no model {name!r}", "check the name")
        progress("download", 10, 100)
        (models_dir / name).mkdir(parents=True)
        (models_dir / name / "weights").write_bytes(b"w" * 100)
        pulled.append(name)
        return resolve(name, models_dir=models_dir)

    def installed(models_dir: Path) -> list[Model]:
        return [resolve(name, models_dir=models_dir) for name in pulled]

    def remove(name: str, *, models_dir: Path) -> None:
        resolve(name, models_dir=models_dir)
        pulled.remove(name)

    for function in (resolve, pull, installed, remove):
        monkeypatch.setattr(f"hipcli.engine.models.{function.__name__}", function)
    return pulled


def test_models(hub: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "hip-cache" / "models" / "smollm2"
    assert "hip models pull smollm2" in run_hip("models", "list").err
    outcome = run_hip("models", "pull", "smollm2")
    assert (outcome.code, outcome.out) == (0, f"{folder}\n")
    assert "fetching smollm2" in outcome.err
    listed = run_hip("models", "list").out.splitlines()[1].split()
    assert listed == ["smollm2", "safetensors", "100", "B", "1", str(folder)]
    assert run_hip("models", "list", "--json").json["models"][0]["bytes"] == 100
    assert run_hip("models", "path", "smollm2").out == f"{folder}\n"
    assert run_hip("models", "rm", "smollm2", "--json").json["removed"] == ["smollm2"]
    assert hub == []


def test_the_first_question_fetches_the_default_model(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hipcli.app import run
    from hipcli.terminal.console import Console
    from tests.hipcli.fakes import Request

    class Engine:
        open = staticmethod(lambda config: FakeEngine())

    fake = type("module", (), {"Engine": Engine})
    monkeypatch.setitem(__import__("sys").modules, "hipcli.engine.engine", fake)
    monkeypatch.setattr("hipcli.runs.opening.make_request", Request)
    out, err = io.StringIO(), io.StringIO()
    assert run(["ask", "book.txt", "Who?"], Console(None, out, err)) == 0
    assert hub == ["smollm2"]
    assert "fetching it, this happens once" in err.getvalue()
    assert run(["ask", "book.txt", "Who?", "-m", "other"], Console(None, out, err)) == 1
    assert "hip models pull other" in err.getvalue()


def test_methods_show_their_settings() -> None:
    outcome = run_hip("methods")
    assert outcome.out.splitlines()[0].split()[0] == "METHOD"
    rows = run_hip("methods", "--json").json["methods"]
    by_name = {row["name"]: row for row in rows}
    assert {"hip", "dense"} <= set(by_name)
    assert by_name["hip"]["settings"]["sink_tokens"] > 0
    assert all(row["source"] and row["cost"] for row in rows)
    assert "arXiv 2406.10774" in outcome.out


def test_doctor_is_well_only_with_a_model(hub: list[str]) -> None:
    ill = run_hip("doctor", "--json")
    assert (ill.code, ill.json["ok"]) == (1, False)
    failed = [check["name"] for check in ill.json["checks"] if check["status"] == "fail"]
    assert failed == ["model"]
    hub.append("smollm2")
    well = run_hip("doctor")
    assert well.code == 0
    for name in ("hip", "python", "torch", "cpu", "memory", "gpu", "cache", "disk", "locale"):
        assert f"\n{name} " in well.out


def test_doctor_tells_of_a_cache_that_cannot_be_written(hub: list[str]) -> None:
    hub.append("smollm2")
    Path("taken").write_text("a file, no folder")
    outcome = run_hip("doctor", "--cache-dir", "taken", "--json")
    checks = {check["name"]: check for check in outcome.json["checks"]}
    assert checks["cache"]["status"] == "note"
    # Answers still come without a cache.
    assert outcome.code == 0
