"""Codes of 8 bits and the scales they are in units of: what every implementation agrees on.

A scale is a power of two, so that dividing by it, or halving codes when it grows, loses no bit but
those that the code has no room for.
"""

from __future__ import annotations

import torch

# The reciprocal of a much smaller scale would not be a number of fp32.
MIN_EXPONENT = -100


def least_scale(largest: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The smallest power of two, fp32, that brings values up to `largest` into a code's range."""
    # mantissa in [0.5, 1): largest = mantissa * 2^exponent.
    mantissa, exponent = torch.frexp(largest.float())
    # Codes of -128 to 127: what is below 2^exponent is below 128 steps of 2^(exponent - 7).
    # e4m3 has four bits of exponent and three of mantissa: up to 448 = 1.75 * 2^8.
    steps = 7 if dtype == torch.int8 else 9 - (2 * mantissa > 1.75).int()
    exponent = exponent - steps
    exponent = torch.where(largest > 0, exponent, MIN_EXPONENT).clamp(min=MIN_EXPONENT)
    # By its bits: a power function may be off by the last one.
    return ((exponent.int() + 127) << 23).view(torch.float32)


def coded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of values in units of their scale, which are within the range.

    e4m3 takes the nearest code. int8 takes the one below: steps of a coarser grid are joined from
    whole steps of a finer one, so that rounding down twice is rounding down once.
    """
    return values.floor().to(dtype) if dtype == torch.int8 else values.to(dtype)
