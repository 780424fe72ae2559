"""Top-k of scores on the device, as an ascending list of block numbers."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import (
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
    require_unit_stride,
)


def select_blocks(
    scores: torch.Tensor,
    num_selected: int,
    candidates: torch.Tensor | None = None,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """Choose exactly min(num_selected, number of finite scores) blocks of every row.

    Among equal scores the lower position wins. Scores of -inf and NaN are never chosen.

    Args:
        scores: fp32 [num_q_blocks, num_kv_heads, n].
        num_selected: most blocks to choose.
        candidates: None where score i belongs to block i; else int32
            [num_q_blocks, num_kv_heads, c] ascending pages (-1 for an unused tail), c dividing
            n: score i then belongs to block candidates[i // (n/c)] * (n/c) + i % (n/c).
        backend: a name of BACKENDS, or "auto".

    Returns:
        int32 [num_q_blocks, num_kv_heads, num_selected], ascending, -1 for the unused tail.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    require_shape("scores", scores, (None, None, None))
    require_dtype("scores", scores, (torch.float32,))
    require_unit_stride("scores", scores)
    require_positive(num_selected=num_selected)
    if candidates is not None:
        require_shape("candidates", candidates, (*scores.shape[:2], None))
        require_dtype("candidates", candidates, (torch.int32,))
        require_same_device(scores=scores, candidates=candidates)
        if candidates.shape[2] == 0 or scores.shape[2] % candidates.shape[2]:
            raise ValueError(
                f"candidates: their number {candidates.shape[2]} must divide the "
                f"{scores.shape[2]} scores of a row"
            )
    run = implementation("select_blocks", backend, scores.device)
    return run(scores, num_selected, candidates)
