"""Decoders built without Transformers compute what its models compute, to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.models import ModelFolder, load
from hipcli.engine.models.decoder import Decoder, read_decoder
from hipcli.engine.models.decoder_config import DecoderConfig
from hipcli.engine.runner import Runner
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
