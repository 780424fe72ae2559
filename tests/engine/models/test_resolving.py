"""Names: alias, file, folder, hub id; found without the network, or said what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.engine.errors import ModelError
from hipcli.engine.models import resolve
from hipcli.engine.models.folders import write_manifest
from hipcli.engine.models.hub import parse_hub_id
from tests.engine.models import toy_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


def put_into_hub_cache(cache: Path, repo_id: str, source: Path) -> Path:
    """A snapshot as the hub's client lays it out: `main` points at COMMIT."""
    repo = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    blobs = repo / "blobs"
    blobs.mkdir()
    for file in source.iterdir():
        (blobs / file.name).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return snapshot


def test_a_folder(source, tmp_path):
    folder = resolve(str(source), models_dir=tmp_path)
    assert (folder.path, folder.revision, folder.format) == (source, "local", "safetensors")


def test_a_folder_hip_made_says_what_it_is(source, tmp_path):
    made = tmp_path / "models" / "toy"
    made.mkdir(parents=True)
    for file in source.iterdir():
        (made / file.name).write_bytes(file.read_bytes())
    write_manifest(made, name="toy", source="somewhere", sha256="ab" * 32, revision="ab" * 8)
    for name in ("toy", str(made)):
        folder = resolve(name, models_dir=made.parent)
        assert (folder.name, folder.revision, folder.format) == ("toy", "ab" * 8, "gguf")


@pytest.mark.parametrize("name", ["org/toy", "org/toy@main", f"org/toy@{COMMIT}"])
def test_a_hub_id_from_the_cache_alone(hub_cache, source, tmp_path, name):
    snapshot = put_into_hub_cache(hub_cache, "org/toy", source)
    folder = resolve(name, models_dir=tmp_path)
    assert (folder.path, folder.revision, folder.name) == (snapshot, COMMIT, name)


@pytest.mark.parametrize("name", ["org/other", "org/toy@v2"])
def test_a_hub_id_that_is_not_here_says_how_to_get_it(hub_cache, source, tmp_path, name):
    put_into_hub_cache(hub_cache, "org/toy", source)
    with pytest.raises(ModelError, match=f"{name} is not on this machine") as caught:
        resolve(name, models_dir=tmp_path)
    assert caught.value.hint == f"Run: hip models pull {name}"


def test_an_incomplete_hub_model_is_said(hub_cache, source, tmp_path):
    snapshot = put_into_hub_cache(hub_cache, "org/toy", source)
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        resolve("org/toy", models_dir=tmp_path)


def test_the_alias_says_how_to_get_it_and_takes_the_hubs_copy(hub_cache, source, tmp_path):
    with pytest.raises(ModelError) as caught:
        resolve("smollm2", models_dir=tmp_path)
    assert caught.value.hint == "Run: hip models pull smollm2"
    snapshot = put_into_hub_cache(hub_cache, "HuggingFaceTB/SmolLM2-135M-Instruct", source)
    folder = resolve("smollm2", models_dir=tmp_path)
    assert (folder.name, folder.path) == ("smollm2", snapshot)


@pytest.mark.parametrize(
    "name, words",
    [
        ("nonsense", "no alias, file or folder"),
        ("", "no alias, file or folder"),
        ("../up", "no alias, file or folder"),
        ("a/b/c", "no alias, file or folder"),
        ("org/../x", "no alias, file or folder"),
        ("missing.gguf", "no alias, file or folder"),
        ("folder/missing.gguf", "no alias, file or folder"),
        ("\0", "no alias, file or folder"),
        ("x" * 5_000, "no alias, file or folder"),
    ],
)
def test_what_is_no_model_lists_what_can_be(tmp_path, name, words):
    with pytest.raises(ModelError, match=words) as caught:
        resolve(name, models_dir=tmp_path)
    assert "smollm2" in caught.value.hint


def test_files_that_are_no_models(source, tmp_path):
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.gguf").write_bytes(b"GGML....")
    with pytest.raises(ModelError, match="not a model"):
        resolve(str(tmp_path / "x.txt"), models_dir=tmp_path)
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve(str(tmp_path / "x.gguf"), models_dir=tmp_path)
    with pytest.raises(ModelError, match="one file of a model") as caught:
        resolve(str(source / "model.safetensors"), models_dir=tmp_path)
    assert str(source) in caught.value.hint


@pytest.mark.parametrize("files", [[], ["config.json"], ["config.json", "pytorch_model.bin"]])
def test_folders_that_are_no_models(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError):
        resolve(str(tmp_path), models_dir=tmp_path / "models")


def test_hub_ids():
    assert parse_hub_id("org/name") == ("org/name", None)
    assert parse_hub_id("org/na.me-1@refs/pr/3") == ("org/na.me-1", "refs/pr/3")
    for wrong in ("name", "org/name@", "org/name@a..b", "a/b/c", "/etc/passwd", "org/name@-x"):
        assert parse_hub_id(wrong) is None


def test_nothing_heavy_is_imported_to_say_that_nothing_is_there(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hipcli.engine.errors import ModelError\n"
        "from hipcli.engine.models import pull, resolve, installed\n"
        "try:\n"
        f"    resolve('nonsense', models_dir=Path({str(tmp_path)!r}))\n"
        "except ModelError:\n"
        "    print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
