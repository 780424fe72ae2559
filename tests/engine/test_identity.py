"""Whatever could change a key or a value makes another session; names and places do not."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hipcli.engine.config import CacheConfig, EngineConfig
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.methods.configs import EVERYTHING
from hipcli.engine.models import ModelFolder, digest
from hipcli.engine.models.digest_cache import CACHE_FILE, weights_digest
from hipcli.engine.reading.saving import Saved
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.identity import LABELS, identity_key
from hipcli.engine.tokenizer import load_tokenizer
from tests.engine.models import toy_models


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


def saved(folder: Path, name: str = "toy", inputs: tuple[str, ...] = ("a", "b"), **config) -> Saved:
    """The session for a context of ten tokens."""
    chosen = EngineConfig(models_dir=folder, device="cpu", **config)
    model = ModelFolder(name, folder, "local", "safetensors")
    loaded = LoadedEngine.load(chosen, model, load_tokenizer(folder))
    asked = AskRequest(
        context_ids=np.arange(10, dtype=np.int32),
        question_ids=[1],
        prefix_tokens=0,
        inputs=(InputRecord(*inputs),),
        cache=CacheConfig(folder),
    )
    return Saved(SessionStore(folder), asked, loaded.identity, loaded.runner.layout, 64)


def key(folder: Path, **named) -> str:
    """Of the same session."""
    return saved(folder, **named).key


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
        {"method_settings": {"prefill_budget_tokens": 256}},
        {"method_settings": {"prefill_reach_tokens": 131072}},
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


def test_what_is_left_to_the_device_is_told_and_no_part_of_it(source: Path) -> None:
    record = saved(source)._record
    names = ("prefill_budget_tokens", "prefill_reach_tokens")
    assert [record["method"][name] for name in names] == [0, 0]
    assert record["read_with"] == dict(zip(names, (256, 131072), strict=True))
    on_a_gpu = {**record, "read_with": dict(zip(names, (1024, EVERYTHING), strict=True))}
    assert identity_key(on_a_gpu) == identity_key(record)


@pytest.fixture(scope="module")
def record(source: Path) -> dict[str, Any]:
    """What is behind the key of a real session, with all that a record can have."""
    found = json.loads(json.dumps(saved(source)._record))
    return found | {"branch": "b1", "keep": "0.25"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to all values that hold no others."""
    if isinstance(value, dict) and value:
        for name in value:
            yield from leaves(value[name], (*path, name))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    else:
        yield path


def at(record: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        record = record[step]
    return record


def put(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of the record with another value there."""
    copy = json.loads(json.dumps(record))
    at(copy, path[:-1])[path[-1]] = value
    return copy


@settings(max_examples=150, deadline=None)
@given(st.data(), st.none() | st.booleans() | st.integers() | st.text(max_size=6))
def test_every_field_of_the_record_counts(record: dict[str, Any], data, value: Any) -> None:
    paths = [path for path in leaves(record) if path[0] not in LABELS]
    assert {path[0] for path in paths} == set(record) - set(LABELS)
    path = data.draw(st.sampled_from(paths))
    changed = put(record, path, value)
    same = json.dumps(changed, sort_keys=True) == json.dumps(record, sort_keys=True)
    assert (identity_key(changed) == identity_key(record)) == same
    without = {name: inner for name, inner in record.items() if name != path[0]}
    assert identity_key(without) != identity_key(record)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_text_that_moves_from_field_to_field_counts(record: dict[str, Any], data) -> None:
    texts = [path for path in leaves(record) if isinstance(at(record, path), str)]
    texts = [path for path in texts if path[0] not in LABELS]
    giver, taker = data.draw(st.lists(st.sampled_from(texts), min_size=2, max_size=2, unique=True))
    given_away = at(record, giver)[-1:]
    moved = put(record, giver, at(record, giver)[:-1])
    moved = put(moved, taker, given_away + at(record, taker))
    assert (identity_key(moved) == identity_key(record)) == (not given_away)


def test_weights_are_told_by_all_bytes_when_asked(source: Path, tmp_path: Path) -> None:
    copy, models = tmp_path / "copy", tmp_path / "models"
    shutil.copytree(source, copy)
    models.mkdir()
    weights = copy / "model.safetensors"
    old = time.time_ns() - 10**10
    os.utime(weights, ns=(old, old))
    assert weights_digest(copy, models) == digest(copy)
    # Written a moment ago: nothing is remembered of it yet.
    assert not (models / CACHE_FILE).exists()
    later = time.time_ns() + 10**11
    with mock.patch("time.time_ns", lambda: later):
        first = weights_digest(copy, models)
        assert first == digest(copy) and (models / CACHE_FILE).exists()
        # As many bytes, the same times but for the one that cannot be set: seen.
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        os.utime(weights, ns=(old, old))
        assert weights_digest(copy, models, verify=True) == digest(copy, full=True) != first
        assert weights_digest(copy, models) == digest(copy)
        # Remembered: the file itself is not read.
        with mock.patch("hipcli.engine.models.digest_cache.digest") as reading:
            assert weights_digest(copy, models) == digest(copy)
            assert not reading.called
        # A damaged memory is none.
        (models / CACHE_FILE).write_text("[")
        assert weights_digest(copy, models) == digest(copy)
    assert weights_digest(copy, tmp_path / "nowhere") == digest(copy)
