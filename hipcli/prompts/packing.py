"""Rows of integers as short text for a JSON file."""

import base64
import zlib

import numpy as np


def pack(values: np.ndarray) -> str:
    """Integers as text: little-endian int32, compressed, base64."""
    data = zlib.compress(np.ascontiguousarray(values, dtype="<i4").tobytes(), 6)
    return base64.b64encode(data).decode("ascii")


def unpack(text: str, count: int) -> np.ndarray:
    """`count` integers from `pack`; never more memory than they take.

    Raises:
        ValueError: the text is damaged, or holds another number of integers.
    """
    size = 4 * count
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged numbers ({error})") from error
    if len(data) != size:
        raise ValueError(f"{count} numbers expected")
    return np.frombuffer(data, dtype="<i4").astype(np.int32)
