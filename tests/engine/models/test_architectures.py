"""Every architecture hip allows gives the stock model's logits when hip's way of attending is put
in: keys left un-rotated by the model, rotated inside the attention function."""

import pytest
import torch
import transformers

from hipcli.engine.errors import ModelError
from hipcli.engine.models.architectures import REFUSED, SUPPORTED, check_config

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


class Unrotated(torch.nn.Module):
    """Stands in for the model's rotary module: the model rotates by nothing, the tables are kept
    for the attention."""

    def __init__(self, stock):
        super().__init__()
        self.stock = stock
        self.tables = None

    def forward(self, x, position_ids=None, **options):
        self.tables = self.stock(x, position_ids, **options)
        return torch.ones_like(self.tables[0]), torch.zeros_like(self.tables[1])


def rotate(x, cos, sin):
    """Half-split rotation of the first `cos.shape[-1]` dimensions of x [B, H, T, D]."""
    rotary, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = rotary.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return torch.cat((rotary * cos[:, None] + turned * sin[:, None], rest), dim=-1)


def build(model_type, **settings):
    config = transformers.AutoConfig.for_model(model_type, **SMALL)
    if getattr(config, "head_dim", None):
        config.head_dim = 16
    for name, value in {**EXPERTS, "sliding_window": None, **settings}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    # The stock initialization is so small that attention hardly shows in the logits.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.5)
    return model


@torch.no_grad()
def difference(model, scale=1.0):
    """Largest difference of logits between the stock model and hip's way, and the logits' size."""
    ids = torch.randint(3, 128, (1, 40), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(7, 47)[None]
    stock = model(ids, position_ids=positions, use_cache=False).logits
    rotary = Unrotated(model.model.rotary_emb)

    def attend(module, q, k, v, mask, scaling=None, **_):
        cos, sin = rotary.tables
        q, k = rotate(q, cos, scale * sin), rotate(k, cos, scale * sin)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(-1, -2) * scaling
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("hip-test", attend)
    model.set_attn_implementation("hip-test")
    model.model.rotary_emb = rotary
    ours = model(ids, position_ids=positions, use_cache=False).logits
    return (stock - ours).abs().max().item(), stock.abs().max().item()


@pytest.mark.parametrize("model_type", sorted(SUPPORTED))
def test_attention_outside_the_model_gives_its_logits(model_type):
    error, size = difference(build(model_type))
    assert error <= 1e-4 * size


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_scaled_rotary_positions_too(rope):
    model = build("llama", rope_parameters={"rope_theta": 10_000.0, **rope})
    check_config(model.config.to_dict(), "scaled")
    error, size = difference(model)
    assert error <= 1e-4 * size


@pytest.mark.parametrize("model_type", ["glm", "helium", "ernie4_5"])
def test_the_comparison_notices_what_is_refused(model_type):
    assert model_type in REFUSED
    error, size = difference(build(model_type))
    assert error > 1e-2 * size


def test_the_comparison_notices_a_wrong_rotation():
    error, size = difference(build("llama"), scale=-1.0)
    assert error > 1e-2 * size


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_refusals_name_the_architecture_and_the_reason(model_type):
    with pytest.raises(ModelError) as caught:
        check_config({"model_type": model_type}, "org/name")
    assert model_type in caught.value.message and REFUSED[model_type] in caught.value.message
    assert "llama" in caught.value.hint


@pytest.mark.parametrize(
    "config, reason",
    [
        ({}, "no model_type"),
        ({"model_type": "whisper"}, "has not been checked"),
        (
            {
                "model_type": "mistral",
                "sliding_window": 4096,
                "max_position_embeddings": 32768,
            },
            "sliding window of 4096",
        ),
        (
            {"model_type": "phi3", "sliding_window": 2047, "max_position_embeddings": 4096},
            "sliding window of 2047",
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 4096,
                "max_position_embeddings": 32768,
            },
            "sliding window",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
            "sliding_attention",
        ),
        ({"model_type": "llama", "attention_chunk_size": 8192}, "chunks"),
        ({"model_type": "llama", "attn_logit_softcapping": 50.0}, "caps"),
        ({"model_type": "llama", "rope_scaling": {"type": "proportional"}}, "proportional"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_settings_hip_cannot_serve_are_refused(config, reason):
    with pytest.raises(ModelError, match=reason):
        check_config(config, "org/name")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 4096, "max_position_embeddings": 32768},
        {"model_type": "phi3", "sliding_window": 262144, "max_position_embeddings": 131072},
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 4, "sliding_window": 4096},
    ],
)
def test_windows_that_are_not_in_use_are_no_reason(config):
    check_config(config, "org/name")


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": ["linear"]}},
        {"rope_parameters": "linear"},
        {"layer_types": 3},
        {"sliding_window": "4096"},
        {"quantization_config": "int4"},
    ],
)
def test_a_configuration_that_cannot_be_read(changes):
    with pytest.raises(ModelError, match="damaged"):
        check_config({"model_type": "llama", **changes}, "a/b")
