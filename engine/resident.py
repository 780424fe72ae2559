"""How much memory this process takes."""

import mmap
import resource
import sys


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
