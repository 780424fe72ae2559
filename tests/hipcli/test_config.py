"""`hip config` and `hip models show`."""

import json
from pathlib import Path

import pytest

from hipcli.config import options
from tests.hipcli.fakes import run_hip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_key_has_a_value_and_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_SEED", "7")
    Path("project.toml").write_text('method = "window"\ninclude = ["*.md"]\n')
    words = ["config", "show", "--config", "project.toml", "--strict"]
    rows = {row["key"]: row for row in run_hip(*words, "--json").json["settings"]}
    assert set(rows) == {option.name for option in options.ALL if option.in_file}
    assert (rows["seed"]["value"], rows["seed"]["source"]) == (7, "HIP_SEED")
    assert (rows["method"]["value"], rows["method"]["source"]) == ("window", "project.toml")
    assert (rows["strict"]["value"], rows["strict"]["source"]) == (True, "command line")
    assert rows["max_new_tokens"]["source"] == "default"
    lines = [line.split() for line in run_hip(*words).out.splitlines()]
    assert ["include", '["*.md"]', "project.toml"] in lines
    assert ["gitignore", "true", "default"] in lines


def test_config_path(tmp_path: Path) -> None:
    expected = tmp_path / "hip-config" / "hip" / "config.toml"
    assert run_hip("config", "path").out == f"{expected}\n"
    assert run_hip("config", "path", "--json").json["path"] == str(expected)
    assert run_hip("config").code == 2


def test_models_show(tmp_path: Path) -> None:
    Path("model").mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 128,
    }
    Path("model/config.json").write_text(json.dumps(config))
    Path("model/tokenizer.json").write_text("{}")
    Path("model/model.safetensors").write_bytes(b"\0" * 8)
    outcome = run_hip("models", "show", "./model", "--json")
    assert outcome.code == 0, outcome.err
    model = outcome.json["model"]
    # Two layers, keys and values of two heads with 16 channels, two bytes each; and summaries.
    assert model["kv_bytes_per_token"] == 2 * (2 * 64 + 2) * 32 * 2 // 64
    assert (model["architecture"], model["trained_tokens"], model["fits"]) == ("llama", 128, True)
    assert "kv_bytes_per_token: 260 B\n" in run_hip("models", "show", "./model").out
    assert run_hip("models", "show", "nosuch").code == 1
