"""Rows of integers as short text for a JSON file."""

import base64
import zlib

import numpy as np

# The first character of a packed row: how many bytes an integer has in it.
_DTYPES = {"1": "<i1", "2": "<i2", "4": "<i4"}


def pack(values: np.ndarray) -> str:
    """Integers as text: in the fewest bytes that hold them all, compressed, base64."""
    values = np.ascontiguousarray(values, dtype="<i4")
    width = next(w for w, dtype in _DTYPES.items() if np.array_equal(values.astype(dtype), values))
    narrow = values.astype(_DTYPES[width])
    return width + base64.b64encode(zlib.compress(narrow.tobytes(), 6)).decode("ascii")


def unpack(text: str, count: int) -> np.ndarray:
    """`count` integers (int32) from `pack`; never more memory than they take.

    Raises:
        ValueError: the text is damaged, or holds another number of integers.
    """
    dtype = np.dtype(_DTYPES.get(text[:1], "<i4"))
    size = dtype.itemsize * count
    try:
        packed = base64.b64decode(text[1:], validate=True)
        data = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged numbers ({error})") from error
    if len(data) != size:
        raise ValueError(f"{count} numbers expected")
    return np.frombuffer(data, dtype=dtype).astype(np.int32)
