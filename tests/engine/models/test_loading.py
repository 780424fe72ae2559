"""Loading: the stock model comes out, and anything wrong with the files is said."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from hipcli.engine.errors import ModelError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.models import ModelFolder, load, pick_device, pick_dtype
from hipcli.engine.models.decoder import Decoder
from tests.engine.models import toy_models
from tests.engine.tiny import prefill_logits


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(source, tmp_path):
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def model_folder(path):
    return ModelFolder("toy", path, "local", "safetensors")


def edit_weights(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    config.update(settings)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_the_stock_model_in_eval_mode_without_gradients(folder, capfd, kind):
    """Built without Transformers where its kind allows it, else by Transformers."""
    import transformers

    if kind == "yarn":
        rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2.0}
        edit_config(folder, rope_parameters=rope)
    loaded = load(model_folder(folder), device="cpu", dtype="fp32")
    assert capfd.readouterr() == ("", "")
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.dtype, loaded.device) == ("float32", "cpu")
    assert isinstance(loaded.model, Decoder) == (kind == "default")
    ids = torch.arange(3, 40)
    stock = transformers.LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        expected = stock(ids[None]).logits[0]
    ours = prefill_logits(Runner(loaded.model), DenseMethod(), ids, 64)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_dtypes(folder):
    assert load(model_folder(folder), device="cpu", dtype="bf16").model.dtype == torch.bfloat16
    with pytest.raises(UsageError, match="--dtype int3"):
        load(model_folder(folder), device="cpu", dtype="int3")


def test_the_digest_does_not_depend_on_the_dtype_loaded(folder):
    digests = {load(model_folder(folder), dtype=dtype).weights_digest for dtype in ("bf16", "fp32")}
    assert len(digests) == 1


def test_a_tied_head_may_be_absent(tmp_path):
    folder = toy_models.llama(tmp_path, tied=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    loaded = load(model_folder(folder), device="cpu", dtype="fp32")
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight


def test_missing_tensors_are_an_error_not_random_weights(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        load(model_folder(folder), device="cpu")


def test_an_untied_head_may_not_be_absent(folder):
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load(model_folder(folder), device="cpu")


def test_layers_the_configuration_does_not_know_are_an_error(folder):
    edit_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"more layers than its config\.json says"):
        load(model_folder(folder), device="cpu")


def test_shapes_that_do_not_fit_the_configuration_are_an_error(folder):
    edit_config(folder, intermediate_size=80)
    with pytest.raises(ModelError):
        load(model_folder(folder), device="cpu")


def test_settings_that_stand_only_in_the_class_are_checked_too(folder):
    # Mistral's class has a window of 4,096 tokens unless the file says otherwise.
    edit_config(folder, model_type="mistral", architectures=["MistralForCausalLM"])
    edit_config(folder, max_position_embeddings=32_768)
    with pytest.raises(ModelError, match="sliding window of 4096"):
        load(model_folder(folder), device="cpu")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 100])
def test_damaged_files_are_model_errors(folder, name, content):
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError):
        load(model_folder(folder), device="cpu")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files_are_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelError, match=name):
        load(model_folder(folder), device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_by_name(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(ModelError, match=f"{name} is a pickle"):
        load(model_folder(folder), device="cpu")


def test_code_beside_the_weights_is_not_run(folder):
    trap = folder / "trap"
    (folder / "modeling_toy.py").write_text(f"open({str(trap)!r}, 'w')\nclass Toy: pass\n")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_toy.Toy"})
    load(model_folder(folder), device="cpu")
    assert not trap.exists()


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == "cuda:0" == pick_device("cuda")
    assert pick_device("cuda:1") == "cuda:1" and pick_device("cpu") == "cpu"
    with pytest.raises(UsageError, match="2 usable CUDA devices"):
        pick_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pick_device("auto") == "cpu"
    for wrong in ("cuda", "tpu", "cpu:1", "cuda:x"):
        with pytest.raises(UsageError):
            pick_device(wrong)


def test_auto_dtype(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert pick_dtype("auto", "cuda:0") == "bfloat16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert pick_dtype("auto", "cuda:0") == "float16"
