"""CRC-32 of the rows of a session's files: by zlib-ng where it is there, by several threads.

zlib-ng gives the same sums three times as fast (docs/log.md). A question compares every key of its
context, 11.5 GB of them at a million tokens of a small model.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

# Below so many bytes a second thread takes longer to begin than it saves.
THREAD_BYTES = 4 << 20


def of_rows(rows: Sequence[np.ndarray], seed: int) -> list[int]:
    """Sums of rows, each uint8 [n], from an initial value; as many threads work as torch may use.

    Args:
        rows: what to sum, each contiguous.
        seed: initial value of each sum.
    """
    total = sum(row.nbytes for row in rows)
    threads = min(torch.get_num_threads(), total // THREAD_BYTES)
    if threads < 2:
        return _of_part(rows, seed)
    each = -(-len(rows) // threads)
    parts = [rows[start : start + each] for start in range(0, len(rows), each)]
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(_of_part, part, seed) for part in parts[1:]]
        sums = _of_part(parts[0], seed)
        for other in others:
            sums += other.result()
    return sums


def _of_part(rows: Sequence[np.ndarray], seed: int) -> list[int]:
    return [crc32(row, seed) for row in rows]
