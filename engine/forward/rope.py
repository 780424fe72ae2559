"""Tables of rotary position embedding, taken from the model's own module.

Keys are stored un-rotated, so hip rotates them when it attends, at packed positions that stay
small however long the context is. The original module computes the tables, so every
`rope_scaling` type and attention factor is the model's own.
Source: Su et al. 2021 (RoFormer); packed positions after InfiniteHiP (arXiv 2502.08910, section 2).
"""

from dataclasses import dataclass

import torch
from torch import nn

from hipcli.kernels.types import RopeTables as KernelTables


class IdentityRotary(nn.Module):
    """Stands in for a model's rotary module and rotates nothing: cos = 1, sin = 0.

    Returns tables of shape [1, 1, rotary_dim], which broadcast over the sequence.
    """

    def __init__(self, rotary_dim: int) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim

    def forward(
        self, hidden: torch.Tensor, position_ids: torch.Tensor | None = None, **_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (1, 1, self.rotary_dim)
        return hidden.new_ones(shape), hidden.new_zeros(shape)


@dataclass(slots=True)
class RopeTables:
    """Cosines and sines of positions 0 .. num_positions - 1, grown when a caller needs more.

    Args:
        rotary: the model's original rotary module; called as `rotary(hidden, position_ids)`.
        dtype: dtype of the tables.
        device: where they live.
        cos, sin: [num_positions, rotary_dim], the half-table repeated twice.
    """

    rotary: nn.Module
    dtype: torch.dtype
    device: torch.device
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, rotary: nn.Module, dtype: torch.dtype, device: torch.device) -> "RopeTables":
        empty = torch.empty(0, 0, dtype=dtype, device=device)
        tables = cls(rotary, dtype, device, empty, empty)
        tables.ensure(1)
        return tables

    @property
    def rotary_dim(self) -> int:
        return self.cos.shape[-1]

    def ensure(self, num_positions: int) -> None:
        """Grow the tables to at least `num_positions` rows."""
        if num_positions <= self.cos.shape[0]:
            return
        rows = max(1024, 1 << (num_positions - 1).bit_length())
        positions = torch.arange(rows, device=self.device).unsqueeze(0)
        hidden = torch.empty(1, 1, 1, dtype=torch.float32, device=self.device)
        cos, sin = self.rotary(hidden, positions)
        self.cos = cos[0].to(self.dtype).contiguous()
        self.sin = sin[0].to(self.dtype).contiguous()

    def rows(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of positions [start, end): two tensors [end - start, rotary_dim]."""
        self.ensure(end)
        return self.cos[start:end], self.sin[start:end]

    def first(self, num_positions: int) -> KernelTables:
        """Whole tables of at least `num_positions` rows, as the kernels take them."""
        self.ensure(num_positions)
        return KernelTables(self.cos, self.sin)
