"""RoPE as one Triton kernel: a program rotates some heads of one token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import load_channels, load_rotated, require_launchable
from ..types import RopeTables


@triton.jit
def _rope(
    x,
    positions,
    cos,
    sin,
    out,
    num_heads,
    cos_stride,
    x_strides: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    REST_PAD: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    valid = head < num_heads
    rows = x + token * x_strides[0] + head * x_strides[1]
    target = out + (token * num_heads + head) * HEAD_DIM
    position = tl.load(positions + token) + tl.zeros_like(head)
    turned = load_rotated(
        rows, valid, cos, sin, position, cos_stride, HALF, HALF_PAD, x.dtype.element_ty, MASKED=True
    )
    channel = tl.arange(0, 2 * HALF_PAD)[None, :]
    mask = valid[:, None] & (channel % HALF_PAD < HALF)
    place = channel // HALF_PAD * HALF + channel % HALF_PAD
    tl.store(target[:, None] + place, turned, mask=mask)
    if REST_PAD > 0:
        REST: tl.constexpr = HEAD_DIM - 2 * HALF
        rest = load_channels(rows, valid, 2 * HALF, REST, REST_PAD, True)
        channel = tl.arange(0, REST_PAD)[None, :]
        mask = valid[:, None] & (channel < REST)
        tl.store(target[:, None] + 2 * HALF + channel, rest, mask=mask)


def rope(x: torch.Tensor, positions: torch.Tensor, tables: RopeTables) -> torch.Tensor:
    """See `hipcli.kernels.rope.rope`."""
    require_launchable(x)
    num_tokens, num_heads, head_dim = x.shape
    half = tables.cos.shape[1] // 2
    rest = head_dim - 2 * half
    block_h = min(32, triton.next_power_of_2(num_heads))
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=x.dtype, device=x.device)
    _rope[(num_tokens, triton.cdiv(num_heads, block_h))](
        x,
        positions,
        tables.cos,
        tables.sin,
        out,
        num_heads,
        tables.cos.stride(0),
        x_strides=x.stride(),
        HEAD_DIM=head_dim,
        HALF=half,
        HALF_PAD=triton.next_power_of_2(half),
        REST_PAD=triton.next_power_of_2(rest) if rest else 0,
        BLOCK_H=block_h,
    )
    return out
