"""A tiny random Llama whose heads are wide enough for the GPU kernels."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.engine.tiny import VOCAB


def wide_model(dtype: torch.dtype, layers: int = 3) -> torch.nn.Module:
    """Few layers, 6 query heads on 2 KV heads of 64 channels, sharp attention, on the CPU."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=384,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        attn_implementation="eager",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
    return model.to(dtype).eval()
