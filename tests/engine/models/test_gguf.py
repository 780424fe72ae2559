"""GGUF files become the very model they were made of."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, pre_tokenizers

from hipcli.engine.errors import ModelError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.models import load, resolve
from hipcli.engine.models.gguf import child, convert, file_digest, no_progress
from hipcli.engine.models.gguf.metadata import Metadata
from hipcli.engine.models.gguf.rope import llama3_factors, rope_parameters
from hipcli.engine.models.gguf.vocabulary import SPLITS, byte_level
from hipcli.engine.tokenizer import load_tokenizer
from tests.engine import toy_tokenizers as toys
from tests.engine.models import toy_models
from tests.engine.tiny import prefill_logits


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return toy_models.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def file(source, tmp_path_factory):
    return toy_models.gguf(tmp_path_factory.mktemp("gguf") / "Toy 2L.F32.gguf", source)


@pytest.fixture(scope="module")
def converted(file, tmp_path_factory):
    models_dir = tmp_path_factory.mktemp("models")
    seen = []
    folder = resolve(str(file), models_dir=models_dir, progress=lambda *step: seen.append(step))
    return folder, seen


def test_weights_come_back_to_the_bit(source, converted):
    ours = load_file(converted[0].path / "model.safetensors")
    theirs = load_file(source / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert np.array_equal(ours[name], tensor), name


def test_the_model_computes_what_its_source_computes(source, converted):
    import transformers

    loaded = load(converted[0], device="cpu", dtype="fp32")
    ids = torch.arange(3, 60)
    stock = transformers.LlamaForCausalLM.from_pretrained(source)
    with torch.no_grad():
        expected = stock(ids[None]).logits[0]
    ours = prefill_logits(Runner(loaded.model), DenseMethod(), ids, 64)
    assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_the_tokenizer_comes_along(source, converted):
    ours, theirs = load_tokenizer(converted[0].path), load_tokenizer(source)
    assert ours.special_ids == theirs.special_ids and ours.stop_ids == theirs.stop_ids
    assert ours.scaffold("Be brief.") == theirs.scaffold("Be brief.")
    text = "def area(width):\n    return width\n"
    assert ours.encode(text).ids.tolist() == theirs.encode(text).ids.tolist()


def test_a_sentencepiece_vocabulary_comes_along(tmp_path):
    source = toy_models.llama(tmp_path / "source", tokenizer=toys.mistral)
    keys = {"tokenizer__ggml__model": "llama", "tokenizer__ggml__pre": "default"}
    path = toy_models.gguf(tmp_path / "x.gguf", source, **keys)
    child.convert(path, tmp_path, lambda done: None)
    ours, theirs = load_tokenizer(tmp_path), load_tokenizer(source)
    assert ours.special_ids == theirs.special_ids and ours.stop_ids == theirs.stop_ids
    assert ours.bos_id == theirs.bos_id
    text = "The harbor </s> was [INST] quiet.\n\n  na\u00efve \U0001f680\n"
    encoded = ours.encode(text)
    assert ours.decode(encoded.ids) == text
    assert encoded.ids.tolist() == theirs.encode(text).ids.tolist()
    assert ours.scaffold().prefix_ids == theirs.scaffold().prefix_ids


def test_it_is_converted_once_and_kept_by_content(file, converted, tmp_path):
    folder, seen = converted
    phases = [phase for phase, *_ in seen]
    assert set(phases) == {"convert"} and seen[-1][1] == seen[-1][2] == file.stat().st_size
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    copy = tmp_path / "other name.gguf"
    copy.write_bytes(file.read_bytes())
    assert file_digest(copy) == file_digest(file)
    again = resolve(str(file), models_dir=folder.path.parent, progress=pytest.fail)
    assert again == folder and folder.format == "gguf" and folder.name == str(file)
    assert folder.path.name == f"Toy-2L.F32-{folder.revision}"
    by_name = resolve(folder.path.name, models_dir=folder.path.parent)
    assert (by_name.path, by_name.revision) == (folder.path, folder.revision)
    left = {path.name for path in folder.path.parent.iterdir()}
    assert left == {folder.path.name, f".{folder.path.name}.lock"}


def test_one_changed_byte_is_another_file(file, tmp_path):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    (tmp_path / "x.gguf").write_bytes(data)
    assert file_digest(tmp_path / "x.gguf") != file_digest(file)


def test_of_large_files_head_blocks_and_end_count(tmp_path, monkeypatch):
    monkeypatch.setattr("hipcli.engine.models.gguf._HEAD_BYTES", 64)
    monkeypatch.setattr("hipcli.engine.models.gguf._BLOCK_BYTES", 8)
    path = tmp_path / "x.gguf"
    data = bytearray(b"GGUF" + bytes(8_000))
    path.write_bytes(data)
    base = file_digest(path)
    for position in (10, 64, len(data) - 1):
        data[position] ^= 1
        path.write_bytes(data)
        assert file_digest(path) != base
        data[position] ^= 1
    path.write_bytes(data + b"\0")
    assert file_digest(path) != base


@pytest.mark.parametrize("size", [0, 3, 100, 3_000, 20_000])
def test_a_truncated_file_is_a_model_error_and_leaves_nothing(file, tmp_path, size):
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:size])
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError):
        file_digest(tmp_path / "cut.gguf")
        child.convert(tmp_path / "cut.gguf", tmp_path / "out", lambda done: None)


def test_a_failing_child_says_why_in_one_line(file, tmp_path):
    models_dir = tmp_path / "models"
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:5_000])
    with pytest.raises(ModelError, match=r"cut\.gguf is not a readable GGUF file") as caught:
        resolve(str(tmp_path / "cut.gguf"), models_dir=models_dir)
    assert "Traceback" not in caught.value.message and caught.value.hint
    assert all(path.name.endswith(".lock") for path in models_dir.iterdir())


def test_a_child_that_cannot_start_is_a_model_error(file, tmp_path, monkeypatch):
    monkeypatch.setattr("hipcli.engine.models.gguf._CHILD", "print('noise'); raise SystemExit(3)")
    with pytest.raises(ModelError, match="failed: noise"):
        convert(file, tmp_path, no_progress)


def test_an_architecture_hip_does_not_run_is_refused_before_conversion(source, tmp_path):
    path = toy_models.gguf(tmp_path / "x.gguf", source, architecture="bert")
    with pytest.raises(ModelError, match="bert"):
        child.convert(path, tmp_path, lambda done: None)
    assert not (tmp_path / "model.safetensors").exists()


class TestSplits:
    """The rule that splits text is the one the file names."""

    @staticmethod
    def metadata(**values):
        defaults = {"tokens": ["a", "<x>", "<y>"], "token_type": [1, 3, 4], "merges": []}
        merged = {**defaults, **values}
        return Metadata("llama", {f"tokenizer.ggml.{k}": v for k, v in merged.items()}, "float32")

    def pieces(self, pre, text):
        spec = byte_level(self.metadata(pre=pre), "x.gguf")
        step = Tokenizer.from_str(json.dumps(spec)).pre_tokenizer
        return [text[start:end] for _, (start, end) in step.pre_tokenize_str(text)]

    def test_digits_stand_alone_for_smollm(self):
        # GPT-2's rule would give "\n", "\n", "12".
        assert self.pieces("smollm", "a\n\n12") == ["a", "\n\n", "1", "2"]
        assert self.pieces("gpt-2", "a\n\n12") == ["a", "\n", "\n", "12"]

    def test_llama3_takes_three_digits(self):
        assert self.pieces("llama-bpe", "x 12345\n\n y") == ["x", " ", "123", "45", "\n\n", " y"]
        assert self.pieces("qwen2", "I'LL 12") == ["I", "'LL", " ", "1", "2"]

    def test_gpt4o_splits_camel_case(self):
        assert self.pieces("gpt-4o", "CamelCase it's") == ["Camel", "Case", " it's"]
        assert self.pieces("tekken", "CamelCase 12") == ["Camel", "Case", " ", "1", "2"]

    @pytest.mark.parametrize("pattern", sorted(set(SPLITS.values())))
    def test_every_pattern_is_one_the_library_takes(self, pattern):
        pre_tokenizers.Split(Regex(pattern), behavior="isolated")

    def test_an_unknown_rule_is_refused(self):
        with pytest.raises(ModelError, match="'brand-new'"):
            byte_level(self.metadata(pre="brand-new"), "x.gguf")

    def test_control_and_user_defined_tokens(self):
        spec = byte_level(self.metadata(pre="gpt-2"), "x.gguf")
        flags = {entry["content"]: entry["special"] for entry in spec["added_tokens"]}
        assert flags == {"<x>": True, "<y>": False}

    def test_a_file_without_the_rules_name_means_gpt2(self):
        assert byte_level(self.metadata(), "x.gguf")["pre_tokenizer"]["type"] == "ByteLevel"


class TestRope:
    """Rotary scaling survives the conversion."""

    @staticmethod
    def metadata(factors=None, **values):
        keys = {f"llama.rope.scaling.{name}": value for name, value in values.items()}
        tensors = {} if factors is None else {"rope_freqs.weight": factors}
        return Metadata("llama", keys, "float32", tensors)

    def test_none(self):
        assert rope_parameters(self.metadata(), {"rope_theta": 1e4}, "x") is None
        assert rope_parameters(self.metadata(type="none", factor=2.0), {}, "x") is None

    def test_linear_and_yarn(self):
        plain = {"rope_theta": 1e4, "rope_type": "default"}
        linear = rope_parameters(self.metadata(type="linear", factor=4.0), plain, "x")
        assert linear == {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}
        yarn = self.metadata(type="yarn", factor=4.0, original_context_length=32768)
        assert rope_parameters(yarn, plain, "x") == {
            "rope_theta": 1e4,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        }

    @pytest.mark.parametrize("factor", [8.0, 32.0])
    def test_llama3_is_recognised_by_its_factors(self, factor):
        import transformers
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        config = transformers.LlamaConfig(
            hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=dict(rope)
        )
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        plain = 500_000.0 ** -(np.arange(0, 128, 2) / 128)
        assert np.allclose(plain / scaled.numpy(), llama3_factors(5e5, 128, factor), rtol=1e-5)
        factors = (plain / scaled.double().numpy()).astype(np.float32)
        assert rope_parameters(self.metadata(factors), {"rope_theta": 5e5}, "x") == rope

    def test_what_cannot_be_expressed_is_refused(self):
        with pytest.raises(ModelError, match="longrope"):
            rope_parameters(self.metadata(type="longrope", factor=4.0), {}, "x")
        with pytest.raises(ModelError, match="frequency factors"):
            rope_parameters(self.metadata(np.full(8, 3.0)), {"rope_theta": 1e4}, "x")

    def test_a_converted_file_keeps_it(self, source, tmp_path):
        factors = llama3_factors(10_000.0, toy_models.HEAD_DIM, 8.0)
        path = toy_models.gguf(tmp_path / "x.gguf", source, factors=factors)
        child.convert(path, tmp_path, lambda done: None)
        rope = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
        assert rope["rope_type"] == "llama3" and math.isclose(rope["factor"], 8.0)
