"""The compressive memory of Infini-attention: a matrix that grows with nothing.

Pure functions of tensors, differentiable, with any leading dimensions ([heads] or [batch, heads]),
so that a training script and the method share them.
Source: Infini-attention (arXiv 2404.07143, section 2.1).
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import elu


def features(x: torch.Tensor) -> torch.Tensor:
    """ELU + 1: what makes a product of query and key a positive weight."""
    return elu(x) + 1


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier segments left behind.

    Args:
        matrix: fp32 [..., head_dim, head_dim], sum of features(key) x value.
        norm: fp32 [..., head_dim], sum of features(key).
    """

    matrix: torch.Tensor
    norm: torch.Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...], head_dim: int, device: torch.device) -> "Memory":
        """A memory of nothing, for leading dimensions `shape`."""
        return cls(
            torch.zeros(*shape, head_dim, head_dim, device=device),
            torch.zeros(*shape, head_dim, device=device),
        )

    def read(self, q: torch.Tensor) -> torch.Tensor:
        """Values that queries recall; zeros from a memory of nothing.

        Args:
            q: [..., rows, head_dim], un-rotated.

        Returns:
            fp32 [..., rows, head_dim].
        """
        return self._recall(features(q.float()))

    def _recall(self, rows: torch.Tensor) -> torch.Tensor:
        weight = (rows @ self.norm.unsqueeze(-1)).clamp(min=torch.finfo(torch.float32).tiny)
        return rows @ self.matrix / weight

    def updated(self, k: torch.Tensor, v: torch.Tensor, *, delta: bool) -> "Memory":
        """With another segment in it.

        Args:
            k, v: [..., tokens, head_dim], keys un-rotated.
            delta: store what the memory does not recall already, instead of the whole value.
        """
        keys, values = features(k.float()), v.float()
        if delta:
            values = values - self._recall(keys)
        return Memory(self.matrix + keys.transpose(-1, -2) @ values, self.norm + keys.sum(-2))


def mixed(gates: torch.Tensor, recalled: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """sigmoid(gate) parts memory, the rest local attention.

    Args:
        gates: [num_heads], before the sigmoid.
        recalled, local: [..., num_heads, head_dim].
    """
    part = torch.sigmoid(gates.float()).unsqueeze(-1)
    return (part * recalled + (1 - part) * local.float()).to(local.dtype)
