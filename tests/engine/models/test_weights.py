"""Weights are known by their content alone."""

import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hipcli.engine.errors import ModelError
from hipcli.engine.models import config_digest, digest, folders
from hipcli.engine.models.weights import read_header

RNG = np.random.default_rng(7)
TENSORS = {
    "model.embed_tokens.weight": RNG.standard_normal((40, 8)).astype(np.float32),
    "model.norm.weight": RNG.standard_normal(8).astype(np.float32),
    "lm_head.weight": RNG.standard_normal((40, 8)).astype(np.float16),
}


def write(folder, tensors, shards=None):
    folder.mkdir(parents=True, exist_ok=True)
    if shards is None:
        save_file(tensors, folder / "model.safetensors")
        return folder
    index = {}
    for number, names in enumerate(shards):
        name = f"part-{number}.safetensors"
        save_file({key: tensors[key] for key in names}, folder / name)
        index.update(dict.fromkeys(names, name))
    (folder / folders._INDEX).write_text(json.dumps({"weight_map": index}))
    return folder


def test_path_layout_and_date_do_not_matter(tmp_path):
    one = write(tmp_path / "one", TENSORS)
    names = list(TENSORS)
    two = write(tmp_path / "two", dict(reversed(TENSORS.items())), [names[:1], names[1:]])
    os.utime(one / "model.safetensors", (0, 0))
    assert digest(one) == digest(two)


def test_one_changed_weight_one_name_one_shape_one_dtype_matter(tmp_path):
    base = digest(write(tmp_path / "base", TENSORS))
    seen = {base}
    for number, name in enumerate(TENSORS):
        changed = {key: value.copy() for key, value in TENSORS.items()}
        changed[name].flat[-1] += 1
        seen.add(digest(write(tmp_path / f"weight-{number}", changed)))
    renamed = dict(TENSORS)
    renamed["model.norm2.weight"] = renamed.pop("model.norm.weight")
    seen.add(digest(write(tmp_path / "renamed", renamed)))
    reshaped = {**TENSORS, "lm_head.weight": TENSORS["lm_head.weight"].reshape(8, 40)}
    seen.add(digest(write(tmp_path / "reshaped", reshaped)))
    retyped = {**TENSORS, "lm_head.weight": TENSORS["lm_head.weight"].view(np.int16)}
    seen.add(digest(write(tmp_path / "retyped", retyped)))
    assert len(seen) == 7


def test_every_byte_of_a_small_model_counts(tmp_path):
    folder = write(tmp_path, {"w": np.arange(24, dtype=np.uint8)})
    path = folder / "model.safetensors"
    base, content = digest(folder), path.read_bytes()
    for position in range(len(content) - 24, len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert digest(folder) != base


def test_of_large_models_edges_and_blocks_count_and_full_sees_all(tmp_path, monkeypatch):
    monkeypatch.setattr("hipcli.engine.models.weights.FULL_BYTES", 0)
    size = 4 * 2**20
    folder = write(tmp_path, {"w": np.zeros(size, dtype=np.uint8)})
    path = folder / "model.safetensors"
    (tensor,) = read_header(path)
    base, whole = digest(folder), digest(folder, full=True)

    def with_flip(offset):
        with path.open("r+b") as file:
            file.seek(tensor.start + offset)
            file.write(b"\1")
        try:
            return digest(folder), digest(folder, full=True)
        finally:
            with path.open("r+b") as file:
                file.seek(tensor.start + offset)
                file.write(b"\0")

    # Positions by the documented rule: both edges of 64 KiB, first and last of eight blocks.
    for offset in (0, 65_535, 65_536, size - 65_537, size - 65_536, size - 1):
        sampled, full = with_flip(offset)
        assert sampled != base and full != whole
    sampled, full = with_flip(65_536 + 20_000)
    assert sampled == base and full != whole
    assert digest(folder) == base != whole


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda data: data[:-1], "header says"),
        (lambda data: data + b"\0", "header says"),
        (lambda data: data[:20], "not a complete"),
        (lambda data: b"", "not a complete"),
        (lambda data: data[:8] + b"?" + data[9:], "damaged header"),
        (lambda data: struct.pack("<Q", 2**60) + data[8:], "not a complete"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_damaged_files_are_model_errors(tmp_path, damage, words):
    folder = write(tmp_path, TENSORS)
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=words):
        digest(folder)


def test_a_missing_shard_is_named(tmp_path):
    names = list(TENSORS)
    folder = write(tmp_path, TENSORS, [names[:1], names[1:]])
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match="1 of 2 weight files are missing .part-1"):
        digest(folder)


def test_an_index_cannot_lead_out_of_the_folder(tmp_path):
    save_file(TENSORS, tmp_path / "outside.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    index = {"weight_map": {"w": "../outside.safetensors"}}
    (folder / folders._INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelError, match="missing"):
        digest(folder)


def test_the_golden_tensors_are_what_safetensors_reads(tmp_path):
    folder = write(tmp_path, TENSORS)
    theirs = load_file(folder / "model.safetensors")
    ours = {tensor.name: tensor for tensor in read_header(folder / "model.safetensors")}
    data = (folder / "model.safetensors").read_bytes()
    for name, array in theirs.items():
        start, size = ours[name].start, ours[name].num_bytes
        assert data[start : start + size] == array.tobytes()


def test_the_configuration_has_a_digest_of_its_own(tmp_path):
    def of(**config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return config_digest(tmp_path)

    base = of(model_type="llama", rope_theta=10_000, transformers_version="5.17")
    assert of(transformers_version="5.24", rope_theta=10_000, model_type="llama") == base
    assert of(model_type="llama", rope_theta=20_000) != base


@pytest.mark.parametrize("places", [True, ["a"], {"a": None}, {"a": ["b"]}])
def test_a_damaged_index(tmp_path, places):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ModelError, match="damaged"):
        folders.weight_files(tmp_path)
