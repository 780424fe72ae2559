"""Decoders of the most common kinds, built from their files without Transformers.

Importing Transformers and building a model with it takes half of what a question to a saved session
needs from its start to its first word (docs/log.md). So where a model's files say all about it, its
modules are built here: the same names, the same operations in the same order, the weights mapped
from their files and not copied. `read_decoder` returns None wherever anything is not as expected;
Transformers then loads the model, or says what is wrong with it.

Runs on a CPU only: GPUs are fast enough for a start not to be felt, and were measured with
Transformers' modules.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import silu

from hipcli.engine.models.decoder_config import DecoderConfig
from hipcli.engine.models.rotary import Rotary, rotary_of

if TYPE_CHECKING:
    from hipcli.engine.step import StepInput

Tensors = dict[str, torch.Tensor]


class _Unexpected(Exception):
    """The files hold something else than the configuration lets expect."""


class RmsNorm(nn.Module):
    """Root mean square norm, in fp32 inside.

    Args:
        weight: [size].
        epsilon: added to the mean square.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (wide * scale).to(hidden.dtype)


class Mlp(nn.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig) -> None:
        super().__init__()
        inner, hidden = config.intermediate_size, config.hidden_size
        self.gate_proj = _linear(tensors, f"{name}.gate_proj", hidden, inner)
        self.up_proj = _linear(tensors, f"{name}.up_proj", hidden, inner)
        self.down_proj = _linear(tensors, f"{name}.down_proj", inner, hidden)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> the same shape."""
        out: torch.Tensor = self.down_proj(silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Attention(nn.Module):
    """Queries, keys and values of one layer; who attends what is the step's business."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = layer, config.head_dim
        self.scaling = config.head_dim**-0.5
        hidden, width = config.hidden_size, config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = _linear(tensors, f"{name}.q_proj", hidden, width)
        self.k_proj = _linear(tensors, f"{name}.k_proj", hidden, kv_width)
        self.v_proj = _linear(tensors, f"{name}.v_proj", hidden, kv_width)
        self.o_proj = _linear(tensors, f"{name}.o_proj", width, hidden)
        self.normed = config.head_norms
        if self.normed:
            self.q_norm = _norm(tensors, f"{name}.q_norm", config.head_dim, config)
            self.k_norm = _norm(tensors, f"{name}.k_norm", config.head_dim, config)

    def forward(self, hidden: torch.Tensor, step: "StepInput") -> torch.Tensor:
        """[T, hidden_size] -> the same shape."""
        shape = (hidden.shape[0], -1, self.head_dim)
        q, k = self.q_proj(hidden).view(shape), self.k_proj(hidden).view(shape)
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        step.softmax_scale = self.scaling
        step.append(self.layer_idx, k, self.v_proj(hidden).view(shape))
        attended = step.attention.attend(self.layer_idx, q, step)
        out: torch.Tensor = self.o_proj(attended.reshape(hidden.shape[0], -1))
        return out


class Layer(nn.Module):
    """Attention, then the MLP, each added to what it was given."""

    def __init__(self, tensors: Tensors, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(tensors, f"{name}.self_attn", config, layer)
        self.mlp = Mlp(tensors, f"{name}.mlp", config)
        self.input_layernorm = _norm(tensors, f"{name}.input_layernorm", size, config)
        after = f"{name}.post_attention_layernorm"
        self.post_attention_layernorm = _norm(tensors, after, size, config)

    def forward(self, hidden: torch.Tensor, step: "StepInput") -> torch.Tensor:
        """[T, hidden_size] -> the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), step)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Stack(nn.Module):
    """Embedding, layers and the last norm: what Transformers calls the model without a head."""

    def __init__(self, tensors: Tensors, config: DecoderConfig, rotary: Rotary) -> None:
        super().__init__()
        size = config.hidden_size
        embedding = _take(tensors, "model.embed_tokens.weight", (config.vocab_size, size))
        self.embed_tokens = nn.Embedding.from_pretrained(embedding)
        self.layers = nn.ModuleList(
            Layer(tensors, f"model.layers.{layer}", config, layer)
            for layer in range(config.num_hidden_layers)
        )
        self.norm = _norm(tensors, "model.norm", size, config)
        self.rotary_emb: nn.Module = rotary

    def forward(
        self, input_ids: torch.Tensor, hip_step: "StepInput", **_: object
    ) -> SimpleNamespace:
        """int64 [1, T] -> an object with `last_hidden_state`, [1, T, hidden_size]."""
        hidden = self.embed_tokens(input_ids[0])
        for layer in self.layers:
            hidden = layer(hidden, hip_step)
        return SimpleNamespace(last_hidden_state=self.norm(hidden).unsqueeze(0))


class Decoder(nn.Module):
    """A causal language model whose attention is hip's; called as Transformers' are.

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
            # A file may hold the head all the same.
            tensors.pop("lm_head.weight", None)
            tensors["lm_head.weight"] = self.model.embed_tokens.weight.detach()
        self.lm_head = _linear(tensors, "lm_head", config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.model.embed_tokens.weight.dtype

    def forward(
        self, input_ids: torch.Tensor, hip_step: "StepInput", logits_to_keep: int = 0, **_: object
    ) -> SimpleNamespace:
        """int64 [1, T] -> an object with `logits`, [1, logits_to_keep (0: T), vocab_size]."""
        hidden = self.model(input_ids, hip_step).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(hidden[:, -logits_to_keep:]))


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


def _linear(tensors: Tensors, name: str, in_features: int, out_features: int) -> nn.Linear:
    """A product with weights of the files, and a bias if they have one."""
    weight = _take(tensors, f"{name}.weight", (out_features, in_features))
    bias = f"{name}.bias"
    layer = nn.Linear(in_features, out_features, bias=bias in tensors, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias in tensors:
        layer.bias = nn.Parameter(_take(tensors, bias, (out_features,)), requires_grad=False)
    return layer


def _norm(tensors: Tensors, name: str, size: int, config: DecoderConfig) -> RmsNorm:
    weight = _take(tensors, f"{name}.weight", (size,))
    return RmsNorm(nn.Parameter(weight, requires_grad=False), config.rms_norm_eps)
