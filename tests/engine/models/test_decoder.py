"""Decoders built without Transformers compute what its models compute, to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hipcli.engine.errors import ModelError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.models import ModelFolder, load
from hipcli.engine.models.decoder import Decoder, read_decoder
from hipcli.engine.models.decoder_config import DecoderConfig
from hipcli.engine.store.limits import HostLimit
from tests.engine.tiny import CONFIGS, decode_logits, prefill_logits, random_ids, tiny_model

BUILT = ("llama", "llama-bias", "llama-linear", "llama3-scaling", "mistral", "qwen2", "qwen3")
LEFT = ("llama-yarn", "phi3", "granite")


def saved(folder: Path, name: str) -> Path:
    """A tiny model's files."""
    tiny_model(name).save_pretrained(folder)
    return folder


def record_of(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return record


def built(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder | None:
    return read_decoder(record_of(folder), [folder / "model.safetensors"], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BUILT)
def test_the_same_numbers(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = saved(tmp_path, name)
    decoder = built(folder, dtype)
    assert decoder is not None and not decoder.training and decoder.dtype == dtype
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    assert {key for key, _ in decoder.named_parameters()} == {
        key for key, _ in stock.named_parameters()
    }
    assert decoder.config.rope_parameters == stock.config.rope_parameters
    ours, theirs = Runner(decoder), Runner(stock)
    assert ours.layout == theirs.layout and ours.trained_tokens == theirs.trained_tokens
    for mine, its in zip(ours.tables.rows(0, 2000), theirs.tables.rows(0, 2000), strict=True):
        assert torch.equal(mine, its)
    ids = random_ids(150)
    for logits in (prefill_logits, decode_logits):
        expected = logits(theirs, DenseMethod(), ids, 64)
        torch.testing.assert_close(
            logits(ours, DenseMethod(), ids, 64), expected, rtol=1e-5, atol=1e-5
        )
    assert expected.abs().max() > 0.1


@pytest.mark.parametrize("name", LEFT)
def test_other_kinds_are_left_to_transformers(tmp_path: Path, name: str) -> None:
    assert built(saved(tmp_path, name)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": None},
        {"rms_norm_eps": None},
        {"hidden_act": "gelu"},
        {"model_type": "gemma"},
        {"num_key_value_heads": 4},
        {"num_hidden_layers": 2},
        {"intermediate_size": 40},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "novel": 1}},
    ],
)
def test_whatever_is_unusual_is_left_to_transformers(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = saved(tmp_path, "llama")
    record = record_of(folder)
    files = [folder / "model.safetensors"]
    assert read_decoder(record, files, torch.float32) is not None
    assert read_decoder({**record, **changes}, files, torch.float32) is None


def test_gaps_that_a_class_fills_are_left_to_it() -> None:
    record = CONFIGS["mistral"].to_dict()
    assert DecoderConfig.of(record) is not None
    del record["sliding_window"]
    assert DecoderConfig.of(record) is None


def test_positions_as_older_files_describe_them() -> None:
    record = CONFIGS["llama3-scaling"].to_dict()
    rope = record.pop("rope_parameters")
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    older = {**record, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    config = DecoderConfig.of(older)
    assert config is not None and config.rope_parameters == rope
    plain = DecoderConfig.of({**older, "rope_scaling": None})
    assert plain is not None and plain.rope_parameters["rope_type"] == "default"
    assert DecoderConfig.of({**older, "rope_scaling": {"type": "linear", "factor": 2.0}}) is None


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_a_missing_or_surplus_tensor(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, "llama")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "more": tensors[name].clone()}, folder / "model.safetensors")
    assert built(folder) is None
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    assert built(folder) is None


def test_weights_are_mapped_where_the_dtype_is_theirs(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what is mapped")
    folder = saved(tmp_path, "llama")
    model = load(ModelFolder("toy", folder, "local", "safetensors"), device="cpu", dtype="fp32")
    assert isinstance(model.model, Decoder)
    # Only until the file is closed where weights were copied.
    assert str(folder / "model.safetensors") in maps.read_text()


def with_biases(tensors: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    """The same with a bias for each projection that ends with one of `names`."""
    biases = {
        key[: -len("weight")] + "bias": torch.ones(len(weight))
        for key, weight in tensors.items()
        if key.endswith(tuple(f"{name}.weight" for name in names))
    }
    return {**tensors, **biases}


@pytest.mark.parametrize(
    ("name", "surplus"),
    [
        ("llama", ("q_proj", "k_proj", "v_proj")),
        ("llama", ("down_proj",)),
        ("mistral", ("v_proj",)),
        ("qwen3", ("o_proj",)),
        ("qwen2", ("o_proj",)),
        ("llama", ("lm_head",)),
    ],
)
def test_biases_that_the_configuration_does_not_name(
    tmp_path: Path, name: str, surplus: tuple[str, ...]
) -> None:
    folder = saved(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    save_file(with_biases(tensors, *surplus), folder / "model.safetensors")
    assert built(folder) is None


@pytest.mark.parametrize("name", ["llama-bias", "qwen2"])
def test_biases_that_are_missing(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, name)
    tensors = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in tensors.items() if not key.endswith("bias")}
    save_file(kept, folder / "model.safetensors")
    assert built(folder) is None


def test_a_head_of_its_own_is_not_tied(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama-bias")
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    assert built(folder) is not None
    save_file({**tensors, "lm_head.weight": embedding + 1}, folder / "model.safetensors")
    assert built(folder) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": "10000"},
        {"rope_theta": None},
        {"rope_theta": 10**30},
        {"rope_type": ["linear"]},
        {"factor": "2"},
        {"factor": None},
    ],
)
def test_positions_that_are_no_numbers(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = saved(tmp_path, "llama-linear")
    record = record_of(folder)
    record["rope_parameters"].update(changes)
    assert read_decoder(record, [folder / "model.safetensors"], torch.float32) is None
    (folder / "config.json").write_text(json.dumps(record))
    with pytest.raises(ModelError):
        load(ModelFolder("toy", folder, "local", "safetensors"), device="cpu", dtype="fp32")


@pytest.mark.parametrize(
    "changes", [{"head_dim": -16}, {"head_dim": 15}, {"partial_rotary_factor": 0.5}]
)
def test_heads_that_cannot_be(changes: dict[str, Any]) -> None:
    assert DecoderConfig.of({**CONFIGS["llama"].to_dict(), **changes}) is None


def test_a_base_beside_the_scaling() -> None:
    """Which of two bases holds is for Transformers to say."""
    record = CONFIGS["llama"].to_dict()
    del record["rope_parameters"]
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert DecoderConfig.of({**record, "rope_theta": 1e4, "rope_scaling": scaling}) is None


@pytest.mark.parametrize("near", [True, False])
def test_a_file_whose_weights_were_laid_out_anew_is_let_go(tmp_path: Path, near: bool) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what is mapped")
    folder = saved(tmp_path, "qwen2")
    decoder = built(folder)
    limit = HostLimit(1 if near else 1 << 50, tmp_path)
    runner = Runner(decoder, weights="int8", host_limit=limit)
    assert (str(folder) in maps.read_text()) is not near
    logits = prefill_logits(runner, DenseMethod(), random_ids(20), 64)
    free = Runner(built(folder), weights="int8")
    assert torch.equal(logits, prefill_logits(free, DenseMethod(), random_ids(20), 64))
