"""How much memory this process takes."""

import resource
import sys


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far, mapped session files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
