"""Tables of rotary positions for models that are built without Transformers.

Source: Su et al. 2021 (RoFormer); for `llama3` the scaling that came with Llama 3.1.
"""

import math
import sys
from typing import Any

import torch
from torch import nn

# What each kind is described by besides its base.
_SETTINGS = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


class Rotary(nn.Module):
    """Cosines and sines of positions.

    Args:
        frequencies: fp32 [head_dim / 2], angle of one position.
    """

    def __init__(self, frequencies: torch.Tensor) -> None:
        super().__init__()
        self._frequencies = frequencies

    def forward(
        self, hidden: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions [1, n] -> cos and sin [1, n, head_dim] in the dtype of `hidden`."""
        angles = position_ids[..., None].float() * self._frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)


def rotary_of(rope: dict[str, Any], head_dim: int) -> Rotary | None:
    """The tables that `rope_parameters` describe; None for a kind not known here."""
    kind = rope["rope_type"]
    known = _SETTINGS.get(kind) if isinstance(kind, str) else None
    if known is None or rope.keys() != {"rope_type", "rope_theta", *known}:
        return None
    if not all(_is_number(rope[name]) for name in ("rope_theta", *known)):
        return None
    even = torch.arange(0, head_dim, 2, dtype=torch.float)
    frequencies = 1.0 / (rope["rope_theta"] ** (even / head_dim))
    if rope["rope_type"] == "linear":
        frequencies = frequencies / rope["factor"]
    elif rope["rope_type"] == "llama3":
        frequencies = _llama3(frequencies, rope)
    return Rotary(frequencies)


def _is_number(value: Any) -> bool:
    """A positive number that tensors take: whole ones have 63 bits there."""
    most = 2**63 - 1 if type(value) is int else sys.float_info.max
    return type(value) in (int, float) and 0 < value <= most


def _llama3(frequencies: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Slow rotations are slowed down, fast ones stay, and those between are blended."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    trained = rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi / frequencies
    share = (trained / wavelengths - low) / (high - low)
    blended = (1 - share) * frequencies / rope["factor"] + share * frequencies
    slow = torch.where(wavelengths > trained / low, frequencies / rope["factor"], frequencies)
    between = (wavelengths <= trained / low) & (wavelengths >= trained / high)
    return torch.where(between, blended, slow)
