"""A pass through a known model on a CPU: few operations, no module calls, joined weights.

Of a step of one token through Transformers' modules more than half the time goes into calling
small operations (docs/log.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hipcli.engine.cpu.layers import Layer, function_of, is_known, read_layer
from hipcli.engine.cpu.linear import Linear, PlainLinear, add_product, best_form, join, lay_out
from hipcli.engine.forward.step import StepInput


@dataclass(frozen=True, slots=True, eq=False)
class ArrangedModel:
    """A known decoder as a list of functions.

    Args:
        embed: token ids to hidden states.
        layers: what lies between.
        norm: of the last hidden states.
        head: hidden states to logits.
        embedding_factor: what embeddings are multiplied by.
        logits_divisor: what logits are divided by.
        num_heads, num_kv_heads, head_dim: shape of queries, keys and values.
    """

    embed: Callable[[torch.Tensor], torch.Tensor]
    layers: list[Layer]
    norm: Callable[[torch.Tensor], torch.Tensor]
    head: Linear
    embedding_factor: float
    logits_divisor: float
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def hidden(self, ids: torch.Tensor, step: StepInput) -> torch.Tensor:
        """Run tokens; their keys and values end up in the store.

        Args:
            ids: [T] token ids.
            step: state of the pass.

        Returns:
            what the last layer puts out, [T, hidden_size].

        Raises:
            KeysWritten: see `StepInput.end_where_written`.
        """
        x = self.embed(ids)
        if self.embedding_factor != 1.0:
            x = x * self.embedding_factor
        for number, layer in enumerate(self.layers):
            x = add_product(layer.out, self._attend(number, layer, x, step), x, layer.residual)
            x = layer.mlp.add_to(x, layer.mlp_norm(x), layer.residual)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden_size] -> fp32 [T, vocab_size]."""
        logits = self.head(self.norm(hidden))
        if self.logits_divisor != 1.0:
            logits = logits / self.logits_divisor
        return logits.float()

    def _attend(self, number: int, layer: Layer, x: torch.Tensor, step: StepInput) -> torch.Tensor:
        heads = self.num_heads
        joined = layer.qkv(layer.norm(x)).unflatten(-1, (-1, self.head_dim))
        if layer.query_norm is not None and layer.key_norm is not None:
            q, k, v = joined.split((heads, self.num_kv_heads, self.num_kv_heads), 1)
            joined = torch.cat((layer.query_norm(q), layer.key_norm(k), v), 1)
        step.softmax_scale = layer.softmax_scale
        step.append_joined(number, joined)
        out = step.attention.attend(number, joined[:, :heads], step)
        return out.flatten(1)


@torch.no_grad()
def arrange(model: Any, weights: str = "auto") -> ArrangedModel | None:
    """Lay out a model's weights, in place, and take it apart where its kind is known.

    Args:
        model: a causal language model on a CPU.
        weights: a name in `config.WEIGHT_FORMS`.

    Returns:
        None for a model of another kind: its own modules run it, on the weights laid out.
    """
    form = best_form(model, weights)
    if not is_known(model):
        if form is not PlainLinear:
            lay_out(model, form)
        return None
    decoder, config = model.model, model.config
    layers = [read_layer(layer, form) for layer in decoder.layers]
    return ArrangedModel(
        embed=decoder.embed_tokens,
        layers=layers,
        norm=function_of(decoder.norm),
        head=join(model, ["lm_head"], form),
        embedding_factor=float(getattr(decoder, "embedding_multiplier", 1.0)),
        logits_divisor=float(getattr(config, "logits_scaling", 1.0)),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=decoder.layers[0].self_attn.head_dim,
    )
