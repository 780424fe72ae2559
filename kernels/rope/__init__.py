"""RoPE of the half-split kind at explicit positions."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import (
    FLOAT_DTYPES,
    check_rope,
    require_dtype,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import RopeTables


def rope(
    x: torch.Tensor, positions: torch.Tensor, tables: RopeTables, *, backend: str = "auto"
) -> torch.Tensor:
    """Rotate queries or keys to explicit positions.

    Args:
        x: [N, num_heads, head_dim].
        positions: int32 or int64 [N], rows of the tables; out of range is undefined.
        tables: cos and sin [max_positions, rotary_dim]; channels from rotary_dim on pass
            through unchanged.
        backend: a name of BACKENDS, or "auto".

    Returns:
        [N, num_heads, head_dim], dtype of x. Products and sums are fp32.

    Raises:
        ValueError: a shape does not fit.
        TypeError: a dtype or device does not fit.
    """
    require_shape("x", x, (None, None, None))
    require_dtype("x", x, FLOAT_DTYPES)
    require_unit_stride("x", x)
    require_shape("positions", positions, (x.shape[0],))
    require_dtype("positions", positions, (torch.int32, torch.int64))
    check_rope(tables, x.shape[2])
    require_same_device(x=x, positions=positions, cos=tables.cos, sin=tables.sin)
    return implementation("rope", backend, x.device)(x, positions, tables)
