"""Codes of quantised pages on a CPU: turned into numbers where they are gathered, a tile at a time.

Memory bandwidth is what a long context costs, and codes are half of it; numbers of more than a
tile are never kept.
"""

from __future__ import annotations

import torch

from .paging import decoded


def page_scales(
    scales: torch.Tensor, page_table: torch.Tensor, pages: torch.Tensor
) -> torch.Tensor:
    """Scales [P, num_kv_heads] of logical pages [..., num_kv_heads, n], none -1: the same shape."""
    heads = torch.arange(scales.shape[1]).unsqueeze(1)
    return scales[page_table[pages.long()].long(), heads]


def decode_into(out: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Write what codes stand for, see `paging.decoded`; no bit is lost, as scales are powers of 2.

    Args:
        out: where to, in the dtype wanted.
        codes: the same shape.
        scales: broadcast to them.

    Returns:
        `out`.
    """
    # By way of fp32, in which a CPU computes faster than in bf16.
    values = decoded(codes, torch.float32)
    return out.copy_(values.mul_(scales))


def decoded_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """What gathered blocks stand for.

    Args:
        codes: [num_kv_heads, n * block_size_k, head_dim], contiguous.
        scales: fp32 [num_kv_heads, n], of each block's page.
        dtype: of the result.
        out: of that dtype and the shape of `codes`, or None for new memory.

    Returns:
        `out`.
    """
    out = torch.empty(codes.shape, dtype=dtype) if out is None else out
    heads, blocks = scales.shape
    if blocks:
        decode_into(out.view(heads, blocks, -1), codes.view(heads, blocks, -1), scales[..., None])
    return out
