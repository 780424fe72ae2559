"""Linear layers of a CPU: weights as they are, or laid out once for its matrix library.

Laid out, a product of one token with bf16 weights takes half the time, and one of a chunk no more
(docs/log.md).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import linear


class Linear(Protocol):
    """A product with weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of x."""


class PlainLinear:
    """Weights as they are.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], or None.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class PackedLinear:
    """bf16 weights in the layout that oneDNN's products like best; the original is not kept.

    Args:
        weight: bf16 [out_features, in_features].
        bias: [out_features], or None.
    """

    __slots__ = ("_bias", "_product", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        # Laid out for one token: this serves chunks as well.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")


class PartOfLinear(nn.Module):
    """Stands in a model for a module whose weights were joined with others and laid out.

    Args:
        whole: the joined layer.
        start, end: which of its output features are this module's.
    """

    def __init__(self, whole: Linear, start: int, end: int) -> None:
        super().__init__()
        self._whole, self._start, self._end = whole, start, end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._whole(x)[..., self._start : self._end]


def can_pack(model: nn.Module) -> bool:
    """True where laying weights out pays: bf16 on a CPU with instructions for it."""
    parameter = next(model.parameters())
    return (
        parameter.device.type == "cpu"
        and parameter.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def join(parent: nn.Module, names: Sequence[str], *, pack: bool) -> Linear:
    """Join linear modules that take the same input into one product.

    The modules go on working: they share the joined weights, or are replaced by parts of it.

    Args:
        parent: has the modules.
        names: of them, in the order of their outputs.
        pack: lay the weights out, see `can_pack`.
    """
    parts: list[nn.Linear] = [getattr(parent, name) for name in names]
    weight = _joined([part.weight for part in parts])
    bias = None
    if any(part.bias is not None for part in parts):
        rows = [part.weight.new_zeros(part.out_features) for part in parts]
        biases = [part.bias for part in parts]
        bias = _joined([zero if b is None else b for b, zero in zip(biases, rows, strict=True)])
    whole: Linear = PackedLinear(weight, bias) if pack else PlainLinear(weight, bias)
    start = 0
    for name, part in zip(names, parts, strict=True):
        end = start + part.out_features
        if pack:
            setattr(parent, name, PartOfLinear(whole, start, end))
        elif len(parts) > 1:
            part.weight = nn.Parameter(weight[start:end], requires_grad=False)
        start = end
    return whole


def pack_all(model: nn.Module) -> None:
    """Lay out the weights of every linear module of a model, each by itself."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                join(parent, [name], pack=True)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0].detach() if len(parts) == 1 else torch.cat([part.detach() for part in parts])
