"""Linear layers of a CPU: weights as they are, laid out once for its matrix library, or in 8 bits.

Laid out, a product of one token with bf16 weights takes half the time, and one of a chunk no more;
in 8 bits about half of that again (docs/log.md).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import linear

# Rows of zeros are divided by something.
_TINY = 1e-30
# From so many tokens on oneDNN's products in 8 bits are the faster ones; they are laid out for
# chunks of a document.
CHUNK_ROWS = 128
_CHUNK_TOKENS = 512


class Linear(Protocol):
    """A product with weights."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of x."""


# Makes a layer of weights and bias.
Form = Callable[[torch.Tensor, torch.Tensor | None], Linear]


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

    __slots__ = ("_bias", "_product", "_weight", "_with_other")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        # Laid out for one token: this serves chunks as well.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._with_other = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """silu(product), taken of its fp32 sums before they are rounded and leave the cache."""
        return self._product(x, self._weight, self._bias, "swish", [], "")

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """product * other, of the sums like `silu`; other has the shape of the result."""
        return self._with_other(x, other, self._weight, self._bias, "mul")

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """product + other, of the sums like `silu`; other has the shape of the result."""
        return self._with_other(x, other, self._weight, self._bias, "add")


def add_product(layer: Linear, x: torch.Tensor, to: torch.Tensor, factor: float) -> torch.Tensor:
    """to + factor * layer(x), in one operation where the layer can; `to` stays as it is."""
    if isinstance(layer, PackedLinear) and factor == 1.0:
        return layer.plus(x, to)
    return to.add(layer(x), alpha=factor)


class Int8Linear:
    """Weights of 8 bits with a factor for each output, inputs of 8 bits with one for each token.

    What a token gives depends on no other token of its pass. Up to rounding chunks and steps agree:
    few tokens are fastest in FBGEMM, many in oneDNN, for which the weights are laid out once more
    when the first chunk comes.

    Args:
        weight: [out_features, in_features] of any float dtype; it is not kept.
        bias: [out_features], or None.
    """

    __slots__ = ("_bias", "_chunks", "_levels", "_product", "_weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        # Without VNNI, sums of two products saturate beyond 7 bits.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self._bias = bias
        self._chunks: _Int8Chunks | None = None
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows, factors = int8_rows(weight)
            zeros = torch.zeros(len(factors), dtype=torch.int64)
            table = torch._make_per_channel_quantized_tensor(rows, factors.double(), zeros, 0)
            self._weight = torch.ops.quantized.linear_prepack(table, None)
        torch.backends.quantized.engine = engine

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.bfloat16 and x.numel() >= CHUNK_ROWS * x.shape[-1] and chunks_in_int8():
            if self._chunks is None:
                table = torch.ops.quantized.linear_unpack(self._weight)[0]
                self._chunks = _Int8Chunks(table.int_repr(), table.q_per_channel_scales().float())
            out = self._chunks(x)
            return out if self._bias is None else out.add_(self._bias)
        wide = x.float()
        size = _sizes(wide)
        out = self._product(wide / size, 1 / self._levels, self._levels + 1, self._weight)
        out.mul_(size)
        return (out if self._bias is None else out.add_(self._bias)).to(x.dtype)


class _Int8Chunks:
    """The product of `Int8Linear` for many tokens, by oneDNN.

    Args:
        rows: int8 [out_features, in_features].
        factors: fp32 [out_features].
    """

    __slots__ = ("_factors", "_product", "_weight", "_zeros")

    def __init__(self, rows: torch.Tensor, factors: torch.Tensor) -> None:
        shape = [_CHUNK_TOKENS, rows.shape[1]]
        self._weight = torch.ops.onednn.qlinear_prepack(rows, shape)
        self._factors = factors
        self._zeros = torch.zeros(len(factors), dtype=torch.int32)
        self._product = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """bf16 [..., in_features] -> [..., out_features]."""
        wide = x.flatten(0, -2).float()
        steps = _sizes(wide).div_(127)
        levels = (wide / steps).round_().to(torch.int8)
        # Signed inputs take a path without the processor's instruction, a hundred times as slow.
        # So 128 stands for 0; a change of the first bit adds it.
        unsigned = levels.bitwise_xor_(-128).view(torch.uint8)
        weight = (self._weight, self._factors, self._zeros, None)
        out = self._product(unsigned, 1.0, 128, *weight, 1.0, 0, x.dtype, "none", [], "")
        return out.mul_(steps.to(x.dtype)).unflatten(0, x.shape[:-1])


def chunks_in_int8() -> bool:
    """True if oneDNN's products of many tokens in 8 bits are exact on this processor."""
    return torch.cpu._is_vnni_supported() and hasattr(torch.ops.onednn, "qlinear_pointwise")


def _sizes(x: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each row of fp32 [..., n]: [..., 1]. A norm takes ten times as long."""
    return x.abs().amax(-1, True).clamp_(min=_TINY)


class Int8WeightsLinear:
    """Weights of 8 bits with a factor for each output, inputs as they are: for other processors.

    Args:
        weight: [out_features, in_features] of any float dtype; it is not kept.
        bias: [out_features], or None.
    """

    __slots__ = ("_bias", "_factors", "_rows")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._rows, factors = int8_rows(weight)
        self._factors, self._bias = factors.to(weight.dtype), bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch._weight_int8pack_mm(x.flatten(0, -2), self._rows, self._factors)
        out = out if self._bias is None else out.add_(self._bias)
        return out.unflatten(0, x.shape[:-1])


def int8_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as int8 [out_features, in_features] times fp32 [out_features]."""
    wide = weight.detach().float()
    factors = wide.abs().amax(1).clamp_(min=_TINY) / 127
    return (wide / factors.unsqueeze(1)).round_().to(torch.int8), factors


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


def best_form(model: nn.Module, weights: str) -> Form:
    """How a model's weights are kept.

    Args:
        model: on any device.
        weights: a name in `config.WEIGHT_FORMS`.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        return PlainLinear
    if weights == "int8":
        has_fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
        return Int8Linear if has_fbgemm else Int8WeightsLinear
    packs = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return PackedLinear if packs and parameter.dtype == torch.bfloat16 else PlainLinear


def join(parent: nn.Module, names: Sequence[str], form: Form) -> Linear:
    """Join linear modules that take the same input into one product.

    The modules go on working: they share the joined weights, or are replaced by parts of it.

    Args:
        parent: has the modules.
        names: of them, in the order of their outputs.
        form: what to make of them.
    """
    parts: list[nn.Linear] = [getattr(parent, name) for name in names]
    weight = _joined([part.weight for part in parts])
    bias = None
    if any(part.bias is not None for part in parts):
        rows = [part.weight.new_zeros(part.out_features) for part in parts]
        biases = [part.bias for part in parts]
        bias = _joined([zero if b is None else b for b, zero in zip(biases, rows, strict=True)])
    whole, start = form(weight, bias), 0
    for name, part in zip(names, parts, strict=True):
        end = start + part.out_features
        if form is not PlainLinear:
            setattr(parent, name, PartOfLinear(whole, start, end))
        elif len(parts) > 1:
            part.weight = nn.Parameter(weight[start:end], requires_grad=False)
        start = end
    return whole


def lay_out(model: nn.Module, form: Form) -> None:
    """Keep the weights of every linear module of a model in another form, each by itself."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                join(parent, [name], form)


def unmap(model: nn.Module) -> None:
    """Copy what is left of a model whose weights were laid out anew, so that its file is let go.

    Pages of a mapped file that were read count as the process's own until nothing of it is in use.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0].detach() if len(parts) == 1 else torch.cat([part.detach() for part in parts])
