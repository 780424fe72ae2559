"""How much memory this process takes."""

import mmap
import re
import resource
import sys
from collections.abc import Sequence

_MAPPING = re.compile(rb"([0-9a-f]+)-[0-9a-f]+ ")


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far, mapped session files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """What of this process is in memory now, mapped files included; 0 where nothing tells."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def resident_in(ranges: Sequence[tuple[int, int]]) -> int:
    """What of mapped files is in memory now as this process's own; 0 where nothing tells.

    Args:
        ranges: addresses [start, end) that a file is mapped to, or a part of one.
    """
    total, counts = 0, False
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                if found := _MAPPING.match(line):
                    start = int(found[1], 16)
                    counts = any(first <= start < last for first, last in ranges)
                elif counts and line.startswith(b"Rss:"):
                    total += int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return total
