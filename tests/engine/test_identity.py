"""Whatever could change a key or a value makes another session; names and places do not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hipcli.engine.config import CacheConfig, EngineConfig
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.models import ModelFolder
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.engine.saving import Saved
from hipcli.engine.sessions import SessionStore
from hipcli.engine.tokenizer import load_tokenizer
from tests.engine.models import toy_models


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


def key(folder: Path, name: str = "toy", inputs: tuple[str, ...] = ("a", "b"), **config) -> str:
    """Of the session for a context of ten tokens."""
    settings = EngineConfig(models_dir=folder, device="cpu", **config)
    model = ModelFolder(name, folder, "local", "safetensors")
    loaded = LoadedEngine.load(settings, model, load_tokenizer(folder))
    asked = AskRequest(
        context_ids=np.arange(10, dtype=np.int32),
        question_ids=[1],
        prefix_tokens=0,
        inputs=(InputRecord(*inputs),),
        cache=CacheConfig(folder),
    )
    return Saved(SessionStore(folder), asked, loaded.identity, loaded.runner.layout, 64).key


def edit_json(name: str, **changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**data, **changes}))

    return edit


def perturb(folder: Path) -> None:
    """Change one attention weight a little."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 5] += 0.01
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def other_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    data = json.loads(path.read_text())
    template = folder / "chat_template.jinja"
    text = template.read_text() if template.exists() else data["chat_template"]
    template.write_text(text.replace("assistant", "helper"))


CHANGES = {
    "a weight": perturb,
    "a norm": edit_json("config.json", rms_norm_eps=1e-3),
    "the template": other_template,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_another(source: Path, tmp_path: Path, change: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    CHANGES[change](copy)
    assert key(copy) != key(source)


def test_settings_that_shape_keys_and_values_count(source: Path) -> None:
    variants = [
        {},
        {"dtype": "bfloat16"},
        {"method": "dense"},
        {"method_settings": {"budget_tokens": 512}},
        {"method_settings": {"window_tokens": 512}},
        {"inputs": ("ab", "")},
        {"inputs": ("", "ab")},
    ]
    # What "auto" means depends on the machine.
    keys = [key(source, **({"dtype": "float32"} | variant)) for variant in variants]
    assert len(set(keys)) == len(keys)


def test_names_places_and_chunks_do_not(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(source, copy)
    assert key(copy, name="other") == key(source) == key(source, prefill_chunk_tokens=128)
