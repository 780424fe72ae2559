"""Joins attention results over disjoint sets of keys."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import FLOAT_DTYPES, require_dtype, require_same_device, require_shape


def merge_partials(
    outs: torch.Tensor,
    lses: torch.Tensor,
    dtype: torch.dtype | None = None,
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge S partial results of the same queries over disjoint keys.

    Args:
        outs: [S, N, num_heads, head_dim], each normalised over its own keys.
        lses: fp32 [S, N, num_heads], natural logarithms; -inf marks an empty part, whose out
            is not read.
        dtype: of the result; outs' where None.
        backend: a name of BACKENDS, or "auto".

    Returns:
        out [N, num_heads, head_dim] and lse fp32 [N, num_heads], computed in fp32; zeros and
        -inf where every part is empty.

    Raises:
        ValueError, TypeError: a shape, dtype or device does not fit.
    """
    require_shape("outs", outs, (None, None, None, None))
    require_dtype("outs", outs, FLOAT_DTYPES)
    require_shape("lses", lses, outs.shape[:3])
    require_dtype("lses", lses, (torch.float32,))
    require_same_device(outs=outs, lses=lses)
    if not (outs.is_contiguous() and lses.is_contiguous()):
        raise ValueError("outs, lses: expected contiguous tensors")
    run = implementation("merge_partials", backend, outs.device)
    return run(outs, lses, dtype)
