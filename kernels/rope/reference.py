"""RoPE in plain PyTorch; `rotate` serves the other references too."""

from __future__ import annotations

import torch

from ..types import RopeTables


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the last dimension: x cos + (-second half, first half) sin, in fp32.

    Args:
        x: [..., head_dim].
        cos, sin: broadcastable to [..., rotary_dim].

    Returns:
        fp32 [..., head_dim]; channels from rotary_dim on are x's own.
    """
    rotary_dim = cos.shape[-1]
    rotary, rest = x.float().split([rotary_dim, x.shape[-1] - rotary_dim], dim=-1)
    first, second = rotary.chunk(2, dim=-1)
    turned = rotary * cos.float() + torch.cat((-second, first), dim=-1) * sin.float()
    return torch.cat((turned, rest), dim=-1)


def rope(x: torch.Tensor, positions: torch.Tensor, tables: RopeTables) -> torch.Tensor:
    """See `hipcli.kernels.rope.rope`."""
    rows = positions.long()
    return rotate(x, tables.cos[rows][:, None], tables.sin[rows][:, None]).to(x.dtype)
