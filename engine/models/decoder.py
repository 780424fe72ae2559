"""Decoders of the most common kinds, built from their files without Transformers.

Importing Transformers and building a model with it takes half of what a question to a saved session
needs from its start to its first word (docs/log.md). So where a model's files say all about it, its
parts are built here, for `engine/cpu` to run: the same names, the weights mapped from their files
and not copied. `read_decoder` returns None wherever anything is not as expected; Transformers then
loads the model, or says what is wrong with it.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hipcli.engine.forward.norms import FusedNorm
from hipcli.engine.models.decoder_config import DecoderConfig
from hipcli.engine.models.rotary import Rotary, rotary_of

Tensors = dict[str, torch.Tensor]


class _Unexpected(Exception):
    """The files hold something else than the configuration lets expect."""


class Attention(nn.Module):
    """Projections of one layer."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim, self.scaling = config.head_dim, config.head_dim**-0.5
        hidden, width = config.hidden_size, config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = _linear(tensors, f"{name}.q_proj", hidden, width, config.biased)
        self.k_proj = _linear(tensors, f"{name}.k_proj", hidden, kv_width, config.biased)
        self.v_proj = _linear(tensors, f"{name}.v_proj", hidden, kv_width, config.biased)
        self.o_proj = _linear(tensors, f"{name}.o_proj", width, hidden, config.biased)
        if config.head_norms:
            self.q_norm = _norm(tensors, f"{name}.q_norm", config.head_dim, config)
            self.k_norm = _norm(tensors, f"{name}.k_norm", config.head_dim, config)


class Mlp(nn.Module):
    """`down(act_fn(gate(x)) * up(x))`."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig) -> None:
        super().__init__()
        inner, hidden = config.intermediate_size, config.hidden_size
        self.gate_proj = _linear(tensors, f"{name}.gate_proj", hidden, inner, config.biased)
        self.up_proj = _linear(tensors, f"{name}.up_proj", hidden, inner, config.biased)
        self.down_proj = _linear(tensors, f"{name}.down_proj", inner, hidden, config.biased)
        self.act_fn = nn.SiLU()


class Layer(nn.Module):
    """Attention, then the MLP, each behind its norm."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(tensors, f"{name}.self_attn", config)
        self.mlp = Mlp(tensors, f"{name}.mlp", config)
        self.input_layernorm = _norm(tensors, f"{name}.input_layernorm", size, config)
        after = f"{name}.post_attention_layernorm"
        self.post_attention_layernorm = _norm(tensors, after, size, config)


class Stack(nn.Module):
    """Embedding, layers and the last norm: what Transformers calls the model without a head."""

    def __init__(self, tensors: Tensors, config: DecoderConfig, rotary: Rotary) -> None:
        super().__init__()
        size = config.hidden_size
        embedding = _take(tensors, "model.embed_tokens.weight", (config.vocab_size, size))
        self.embed_tokens = nn.Embedding.from_pretrained(embedding)
        self.layers = nn.ModuleList(
            Layer(tensors, f"model.layers.{layer}", config)
            for layer in range(config.num_hidden_layers)
        )
        self.norm = _norm(tensors, "model.norm", size, config)
        self.rotary_emb: nn.Module = rotary


class Decoder(nn.Module):
    """A causal language model in parts, named as Transformers names them.

    It cannot be called: `cpu.forward.arrange` takes it apart and runs it.

    Args:
        tensors: weights by name, taken out as they are used.
        config: its shape.
        rotary: makes its tables.
    """

    def __init__(self, tensors: Tensors, config: DecoderConfig, rotary: Rotary) -> None:
        super().__init__()
        self.config = config
        self.model = Stack(tensors, config, rotary)
        if config.tie_word_embeddings:
            embedding = self.model.embed_tokens.weight.detach()
            # A file may hold the head all the same; one of its own is not tied after all.
            if not torch.equal(tensors.setdefault("lm_head.weight", embedding), embedding):
                raise _Unexpected("lm_head.weight")
        self.lm_head = _linear(tensors, "lm_head", config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.embed_tokens.weight.dtype


@torch.no_grad()
def read_decoder(record: dict[str, Any], files: list[Path], dtype: torch.dtype) -> Decoder | None:
    """A model from the content of its config.json and its safetensors files.

    Args:
        record: a configuration that hip runs, see `architectures.check_config`.
        files: the weights.
        dtype: of the model; weights in another one are converted.

    Returns:
        None if it is not of a kind known here, or anything about it is unusual.
    """
    config = DecoderConfig.of(record)
    if config is None:
        return None
    rotary = rotary_of(config.rope_parameters, config.head_dim)
    if rotary is None:
        return None
    try:
        tensors = _mapped(files, dtype)
        decoder = Decoder(tensors, config, rotary)
    except _Unexpected:
        return None
    # What no module took: another kind of model after all.
    return None if tensors else decoder.requires_grad_(False).eval()


def _mapped(files: list[Path], dtype: torch.dtype) -> Tensors:
    """All tensors of the files by name, those of `dtype` mapped and not copied."""
    from safetensors import SafetensorError, safe_open

    tensors: Tensors = {}
    try:
        for file in files:
            with safe_open(str(file), framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    tensors[name] = opened.get_tensor(name).to(dtype)
    except (SafetensorError, OSError) as error:
        raise _Unexpected(str(error)) from None
    # Older files have what follows from the configuration.
    return {name: x for name, x in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _take(tensors: Tensors, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of the files, taken out of them. Raises _Unexpected if it is not there."""
    tensor = tensors.pop(name, None)
    if tensor is None or tensor.shape != shape:
        raise _Unexpected(name)
    return tensor


def _linear(
    tensors: Tensors,
    name: str,
    in_features: int,
    out_features: int,
    biased: frozenset[str] = frozenset(),
) -> nn.Linear:
    """A product with weights of the files, and a bias if its last name is one of `biased`."""
    weight = _take(tensors, f"{name}.weight", (out_features, in_features))
    has_bias = name.rpartition(".")[2] in biased
    layer = nn.Linear(in_features, out_features, bias=has_bias, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if has_bias:
        bias = _take(tensors, f"{name}.bias", (out_features,))
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def _norm(tensors: Tensors, name: str, size: int, config: DecoderConfig) -> FusedNorm:
    weight = _take(tensors, f"{name}.weight", (size,))
    return FusedNorm(nn.Parameter(weight, requires_grad=False), config.rms_norm_eps)
