"""How the last program of a head merges what the others left (see `triton_impl`).

The same sum as `merge_partials`, without its launch and without a wait for the slowest head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..triton_common import LN_2


@triton.jit
def join_parts(
    outs,
    lses,
    out,
    lse,
    row,
    part_rows,
    parts,
    overflow,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADS: tl.constexpr,
):
    """Merge the parts of GROUP query heads from `row` on; their lse is in powers of two."""
    D_PAD: tl.constexpr = PADS[2]
    PARTS_PAD: tl.constexpr = PADS[5]
    GROUP_PAD: tl.constexpr = PADS[6]
    # As many parts at once as 64 registers a thread hold.
    FITTING: tl.constexpr = max(1, 8192 // (GROUP_PAD * D_PAD))
    CHUNK: tl.constexpr = min(PARTS_PAD, FITTING)
    rows = row + tl.arange(0, GROUP_PAD)
    valid = tl.arange(0, GROUP_PAD) < GROUP
    part = tl.arange(0, PARTS_PAD)
    at = part.to(tl.int64)[:, None] * part_rows + rows[None, :]
    mask = (part < parts)[:, None] & valid[None, :]
    # Other programs wrote these: the first-level cache is passed by.
    part_lse = tl.load(lses + at, mask=mask, other=float("-inf"), cache_modifier=".cg")
    largest = tl.where(valid, tl.max(part_lse, axis=0), 0.0)
    total = tl.sum(tl.math.exp2(part_lse - largest[None, :]), axis=0)
    channel = tl.arange(0, D_PAD)
    kept = valid[:, None] & (channel < HEAD_DIM)[None, :]
    acc = tl.zeros([GROUP_PAD, D_PAD], dtype=tl.float32)
    for first in range(0, parts, CHUNK):
        few = first + tl.arange(0, CHUNK)
        at_few = few.to(tl.int64)[:, None] * part_rows + rows[None, :]
        used = (few < parts)[:, None] & valid[None, :]
        weight = tl.load(lses + at_few, mask=used, other=float("-inf"), cache_modifier=".cg")
        weight = tl.math.exp2(weight - largest[None, :])
        values = tl.load(
            outs + at_few[:, :, None] * HEAD_DIM + channel[None, None, :],
            mask=used[:, :, None] & kept[None, :, :], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        acc += tl.sum(values * weight[:, :, None], axis=0)
    # A plan that broke its promise of local_tokens must not look like an answer.
    total = tl.where(overflow, float("nan"), total)
    tl.store(lse + rows, (largest + tl.math.log2(total)) * LN_2, mask=valid)
    target = out + rows.to(tl.int64)[:, None] * HEAD_DIM + channel[None, :]
    tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), mask=kept)
