"""The layers of a model that is built in a known way, as what a pass calls of them.

Known are decoders whose layers are `x + attention(norm(x))`, then `x + mlp(norm(x))`, with a gated
MLP. Each model type listed is compared with its stock model in the tests; any other, and any with
a part that is not expected, runs through its own modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.linalg import vector_norm
from torch.nn.functional import silu

from hipcli.engine.cpu.linear import Form, Linear, PackedLinear, add_product, join
from hipcli.engine.forward.norms import FusedNorm

KNOWN = frozenset({"llama", "mistral", "qwen2", "qwen3", "granite", "gemma", "phi3", "seed_oss"})

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_ATTENTIONS = (
    {*_PROJECTIONS, "o_proj"},
    {*_PROJECTIONS, "o_proj", "q_norm", "k_norm"},
    {"qkv_proj", "o_proj"},
)
_MLPS = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class GatedMlp:
    """`down(activation(gate(x)) * up(x))`.

    Args:
        gate_up: both, the gate first.
        down: back to the width of the model.
        activation: of the gate.
    """

    gate_up: Linear
    down: Linear
    activation: Function

    def add_to(self, residual: torch.Tensor, x: torch.Tensor, factor: float) -> torch.Tensor:
        """residual + factor * MLP of x, both [T, hidden_size]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        # What an activation returns is its own.
        return add_product(self.down, self.activation(gate).mul_(up), residual, factor)


@dataclass(frozen=True, slots=True, eq=False)
class FusedMlp:
    """`down(silu(gate(x)) * up(x))`: what is done to each number is done within the products.

    Args:
        gate, up, down: as in `GatedMlp`.
    """

    gate: PackedLinear
    up: PackedLinear
    down: Linear

    def add_to(self, residual: torch.Tensor, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See `GatedMlp.add_to`."""
        return add_product(self.down, self.up.times(x, self.gate.silu(x)), residual, factor)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer of a known decoder.

    Args:
        norm: of what attention takes in.
        qkv: queries, keys and values at once.
        query_norm, key_norm: of each head, or None.
        out: what follows attention.
        mlp_norm: of what the MLP takes in.
        mlp: the MLP.
        softmax_scale: factor of q.k.
        residual: what both results are multiplied by before they are added.
    """

    norm: Function
    qkv: Linear
    query_norm: Function | None
    key_norm: Function | None
    out: Linear
    mlp_norm: Function
    mlp: GatedMlp | FusedMlp
    softmax_scale: float
    residual: float


def is_known(model: Any) -> bool:
    """True if every part of the model is one that `read_layer` and the pass know."""
    config = model.config
    if config.model_type not in KNOWN or type(model.lm_head) is not nn.Linear:
        return False
    return all(_layer_is_known(layer, config) for layer in model.model.layers)


def read_layer(layer: Any, form: Form) -> Layer:
    """Take the parts of a layer; its weights are joined in place, and kept in `form`."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = [name for name in (*_PROJECTIONS, "qkv_proj") if hasattr(attention, name)]
    return Layer(
        norm=function_of(layer.input_layernorm),
        qkv=join(attention, projections, form),
        query_norm=function_of(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=function_of(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=join(attention, ["o_proj"], form),
        mlp_norm=function_of(layer.post_attention_layernorm),
        mlp=_read_mlp(mlp, form),
        softmax_scale=float(attention.scaling),
        residual=float(getattr(layer, "residual_multiplier", 1.0)),
    )


def _read_mlp(mlp: Any, form: Form) -> GatedMlp | FusedMlp:
    activation = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
    gates = [name for name in ("gate_proj", "up_proj", "gate_up_proj") if hasattr(mlp, name)]
    if form is PackedLinear and _is_silu(activation) and len(gates) == 2:
        gate, up = (join(mlp, [name], form) for name in gates)
        assert isinstance(gate, PackedLinear) and isinstance(up, PackedLinear)
        return FusedMlp(gate, up, join(mlp, ["down_proj"], form))
    return GatedMlp(
        gate_up=join(mlp, gates, form),
        down=join(mlp, ["down_proj"], form),
        activation=silu if _is_silu(activation) else activation,
    )


def function_of(norm: nn.Module) -> Function:
    """What a norm computes, in few operations where it is a root mean square norm."""
    if not isinstance(norm, FusedNorm):
        return norm
    # x / sqrt(mean(x^2) + epsilon) is x * sqrt(n) / hypot(|x|, sqrt(n * epsilon)).
    size = norm.weight.shape[0]
    factors = norm.weight.detach().float() * size**0.5
    floor = torch.full((1, 1), (size * norm.variance_epsilon) ** 0.5)

    def root_mean_square(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        length = torch.hypot(vector_norm(wide, 2, -1, True), floor)
        return (wide / length).mul_(factors).to(x.dtype)

    return root_mean_square


def _is_silu(activation: nn.Module) -> bool:
    return isinstance(activation, nn.SiLU) or type(activation).__name__ == "SiLUActivation"


def _layer_is_known(layer: Any, config: Any) -> bool:
    if _parts(layer) != _LAYER:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if _parts(attention) not in _ATTENTIONS:
        return False
    activation = {"act_fn"} if hasattr(mlp, "act_fn") else {"activation_fn"}
    if _parts(mlp) - activation not in _MLPS:
        return False
    linear = [
        child
        for parent in (attention, mlp)
        for name, child in parent.named_children()
        if name.endswith("_proj")
    ]
    return config.num_attention_heads % config.num_key_value_heads == 0 and all(
        type(child) is nn.Linear for child in linear
    )


def _parts(module: nn.Module) -> set[str]:
    """Names of the children that do something while no one trains."""
    return {name for name, child in module.named_children() if not isinstance(child, nn.Dropout)}
