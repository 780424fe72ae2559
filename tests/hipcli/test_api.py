"""`import hipcli`: the same engine without a terminal."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hipcli
from hipcli.engine.errors import InputError, UsageError
from tests.engine.models import toy_models
from tests.hipcli.fakes import FakeEngine, installed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\n")


def test_ask_streams_and_knows_everything_afterwards() -> None:
    engine = FakeEngine()
    with installed(engine), hipcli.open("book.txt", max_new_tokens=9, system="Be brief.") as book:
        answer = book.ask("Who?")
        assert list(answer) == ["It was ", "Ada."]
        assert answer.text == str(answer) == "It was Ada."
        assert list(answer) == ["It was ", "Ada."]
        assert answer.evidence == []
        assert answer.document["inputs"][0]["path"] == "book.txt"
        assert book.ask("When?").text == "It was Ada."
    assert len(engine.configs) == 1
    assert engine.requests[0].generation.max_new_tokens == 9


def test_settings_come_from_where_the_command_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_SEED", "7")
    engine = FakeEngine()
    with installed(engine), hipcli.open("book.txt", include=["*.txt"], gitignore=False) as book:
        assert book.ask("Who?").text
    assert engine.requests[0].generation.seed == 7


def test_without_a_cache_documents_are_read_once() -> None:
    engine = FakeEngine()
    with installed(engine), hipcli.open("book.txt", no_cache=True) as book:
        assert book.ask("Who?").text and book.ask("When?").text
        directory = engine.requests[1].cache.directory
        assert directory == engine.requests[0].cache.directory and directory.exists()
    assert not directory.exists()


@pytest.mark.parametrize(
    ("sources", "options", "error", "part"),
    [
        ([], {}, UsageError, "no document"),
        (["nowhere.txt"], {}, InputError, "nowhere.txt"),
        (["book.txt"], {"modle": "x"}, UsageError, "unknown option 'modle'"),
        (["book.txt"], {"max_new_tokens": "many"}, UsageError, "--max-new-tokens"),
        (["book.txt"], {"method": "hpi"}, UsageError, "hpi"),
    ],
)
def test_failures(sources, options, error, part) -> None:  # type: ignore[no-untyped-def]
    with installed(FakeEngine()), pytest.raises(error, match=part):
        hipcli.open(*sources, **options)


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in example.splitlines() if line]) <= 10
    Path("notes").mkdir()
    Path("notes/june.txt").write_text("Sent in June.\n")
    monkeypatch.setenv("HIP_MODEL", str(toy_models.llama(tmp_path / "model")))
    monkeypatch.setenv("HIP_DEVICE", "cpu")
    exec(compile(example.replace("200", "4"), "README.md", "exec"), {})
    shown = capsys.readouterr().out
    # A model of random weights says nothing, but it says it twice.
    assert len(shown) > 4 and shown.endswith("\n")


def test_importing_hipcli_loads_nothing_else() -> None:
    program = "import hipcli, sys; print([m for m in sys.modules if m.startswith('hipcli.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"['hipcli.version']"
