"""Arithmetic of fp8 codes in the Triton kernels: scales that are powers of two, and rounding."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def least_scale(largest):
    """The smallest power of two, at least 2^-100, with which `largest` fits e4m3 (448)."""
    # 448 is 1.75 * 2^8: a larger mantissa carries into the exponent.
    exponent = ((largest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8
    return (tl.maximum(exponent, 27) << 23).to(tl.float32, bitcast=True)


@triton.jit
def reciprocal(power):
    """1 / a power of two, exactly; a division may be approximate."""
    return ((254 << 23) - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def to_e4m3(x):
    """fp32 up to 448 to float8_e4m3fn, nearest even; beyond it, and not a number, to NaN.

    Rounded here, so that the conversion is exact and alike wherever it runs.
    """
    bits = x.to(tl.int32, bitcast=True)
    coarse = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    normal = coarse.to(tl.float32, bitcast=True)
    # Below 2^-6 the grid is 2^-9, as it is for fp32 near 1.5 * 2^14.
    tiny = (x + 24576.0) - 24576.0
    rounded = tl.where(tl.abs(x) < 0.015625, tiny, normal)
    return tl.where(tl.abs(x) <= 448.0, rounded, float("nan")).to(tl.float8e4nv)


@triton.jit
def split_e4m3(rows):
    """Rows fp32 as (high, low, scale): rows = (high + low) * scale to eight significant bits.

    Two products in fp8 take the time of one in 16 bits, and keys in fp8 then go to the matrix
    units as they are stored. The scale is one power of two for all rows.
    """
    scale = least_scale(tl.max(tl.max(tl.abs(rows), axis=1), axis=0))
    scaled = rows * reciprocal(scale)
    high = to_e4m3(scaled)
    return high, to_e4m3(scaled - high.to(tl.float32)), scale
