"""Tiny random models and ready-made runs for the engine's tests."""

import torch
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass

VOCAB = 256

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS = {
    "llama": LlamaConfig(**SHAPE),
    "llama-bias": LlamaConfig(**SHAPE, attention_bias=True, tie_word_embeddings=True),
    "llama-yarn": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "llama-linear": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "llama3-scaling": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=False),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, use_sliding_window=False),
    "phi3": Phi3Config(**SHAPE, partial_rotary_factor=0.5, sliding_window=None),
    "granite": GraniteConfig(
        **SHAPE, attention_multiplier=0.2, embedding_multiplier=3.0, logits_scaling=2.0
    ),
}


def tiny_hip(reach_tokens: int = 0) -> HipMethod:
    """The default method with sizes at which short texts are sparse; 0 reaches everything."""
    return HipMethod(
        HipConfig(
            sink_tokens=64,
            window_tokens=128,
            budget_tokens=128,
            prefill_budget_tokens=128,
            prefill_reach_tokens=reach_tokens,
            dense_tokens=0,
            candidate_tokens=256,
            query_distance_tokens=200,
        )
    )


def tiny_model(name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A random model with sharp attention: initial weights large enough that keys matter."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager")
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "q_proj" in parameter_name or "k_proj" in parameter_name or "qkv" in parameter_name:
                parameter.mul_(8)
            if parameter_name.endswith("bias"):
                parameter.normal_(0, 0.5)
    return model.to(dtype).eval()


def random_ids(length: int, seed: int = 0) -> torch.Tensor:
    """Token ids [length]."""
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def stock_logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Logits fp32 [T, vocab] of the stock model, before hip touches it."""
    with torch.inference_mode():
        return model(ids.unsqueeze(0), use_cache=False).logits[0].float()


def prefill_logits(runner: Runner, method, ids: torch.Tensor, chunk: int) -> torch.Tensor:
    """Logits fp32 [T, vocab] of all tokens, read chunk by chunk."""
    store = runner.new_store(len(ids))
    parts = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        parts.append(runner.logits(part, step, keep=len(part)))
    return torch.cat(parts)


def decode_logits(runner: Runner, method, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits fp32 of the tokens after the first `prompt`, run one by one."""
    method.reset()
    store = runner.new_store(len(ids))
    step = StepInput(store, runner.tables, PrefillPass(method), 0)
    runner.forward(ids[:prompt], step)
    answering = AnswerPass(method)
    rows = []
    for position in range(prompt, len(ids)):
        step = StepInput(store, runner.tables, answering, position)
        rows.append(runner.logits(ids[position : position + 1], step)[-1])
    return torch.stack(rows)
