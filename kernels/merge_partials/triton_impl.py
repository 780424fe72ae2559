"""The merge as one Triton kernel: a program joins the parts of one query head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import LN_2, LOG2_E, require_launchable


@triton.jit
def _merge(
    outs,
    lses,
    out,
    lse,
    num_parts,
    part_rows,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    PARTS_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.arange(0, PARTS_PAD)
    part_lse = tl.load(
        lses + part.to(tl.int64) * part_rows + row, mask=part < num_parts, other=float("-inf")
    )
    largest = tl.max(part_lse, axis=0)
    # With every part empty the difference below would be NaN.
    floor = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.math.exp2((part_lse - floor) * LOG2_E), axis=0)
    merged = floor + tl.math.log2(total) * LN_2
    tl.store(lse + row, merged)
    reference = tl.where(total > 0, merged, 0.0)
    channel = tl.arange(0, D_PAD)
    acc = tl.zeros([D_PAD], dtype=tl.float32)
    for first in range(0, num_parts, CHUNK):
        few = first + tl.arange(0, CHUNK)
        at = few.to(tl.int64) * part_rows + row
        chunk_lse = tl.load(lses + at, mask=few < num_parts, other=float("-inf"))
        # An empty part's values may never have been written: they are not loaded.
        mask = (chunk_lse > float("-inf"))[:, None] & (channel < HEAD_DIM)[None, :]
        values = tl.load(outs + at[:, None] * HEAD_DIM + channel[None, :], mask=mask, other=0.0)
        weights = tl.math.exp2((chunk_lse - reference) * LOG2_E)
        acc += tl.sum(values.to(tl.float32) * weights[:, None], axis=0)
    target = out + row.to(tl.int64) * HEAD_DIM + channel
    tl.store(target, acc.to(out.dtype.element_ty), mask=channel < HEAD_DIM)


def merge_partials(
    outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.merge_partials.merge_partials`."""
    require_launchable(outs)
    num_parts, num_tokens, num_heads, head_dim = outs.shape
    shape = (num_tokens, num_heads, head_dim)
    out = torch.empty(shape, dtype=dtype or outs.dtype, device=outs.device)
    lse = torch.empty(shape[:2], dtype=torch.float32, device=outs.device)
    parts_pad = triton.next_power_of_2(num_parts)
    _merge[(num_tokens * num_heads,)](
        outs,
        lses,
        out,
        lse,
        num_parts,
        num_tokens * num_heads,
        HEAD_DIM=head_dim,
        D_PAD=triton.next_power_of_2(head_dim),
        PARTS_PAD=parts_pad,
        CHUNK=min(parts_pad, 32),
        num_warps=4,
    )
    return out, lse
