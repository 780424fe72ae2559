"""Which pages of a context a pruned session keeps. No torch here.

The sinks, the window and the last page stay. Of the pages between them a ratio stays: those whose
worth (`engine/reading/worth.py`) is highest.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hipcli.engine.store.layout import PAGE_TOKENS, num_pages

if TYPE_CHECKING:
    import numpy as np

# Of methods that have no sinks or window of their own.
SINK_TOKENS, WINDOW_TOKENS = 256, 1024

# First page and the one behind the last, of pages that stand next to each other.
Runs = list[list[int]]


def kept_name(ratio: float) -> str:
    """A ratio as a session's identity has it."""
    return f"{ratio:.4g}"


def page_borders(tokens: int, method: Mapping[str, Any]) -> tuple[int, int]:
    """First page behind the sinks, and first page of the window.

    Args:
        tokens: of the context.
        method: settings of the attention method.
    """
    sinks = num_pages(method.get("sink_tokens", SINK_TOKENS))
    window = num_pages(method.get("window_tokens", WINDOW_TOKENS))
    # The window begins `window_tokens` before the page that the question goes on in.
    return sinks, max(sinks, tokens // PAGE_TOKENS - window)


def kept_count(tokens: int, method: Mapping[str, Any], ratio: float) -> int:
    """How many pages `chosen_pages` chooses."""
    first, end = page_borders(tokens, method)
    middle = max(1, round(ratio * (end - first))) if end > first else 0
    return num_pages(tokens) - (end - first) + middle


def chosen_pages(
    worth: Sequence[float], tokens: int, method: Mapping[str, Any], ratio: float
) -> "np.ndarray":
    """The pages to keep, int64 ascending.

    Args:
        worth: of each page of the context.
        tokens: of the context.
        method: settings of the attention method.
        ratio: of the pages between sinks and window, 0 to 1.
    """
    import numpy as np

    first, end = page_borders(tokens, method)
    count = kept_count(tokens, method, ratio) - (num_pages(tokens) - (end - first))
    # Of equals the later page: what it says stands closer to the question.
    order = np.argsort(np.asarray(worth[first:end], dtype=np.float64), kind="stable")[::-1]
    middle = np.sort(order[:count] + first)
    return np.concatenate((np.arange(first), middle, np.arange(end, num_pages(tokens))))


def fitting_ratio(
    tokens: int, method: Mapping[str, Any], page_bytes: int, limit_bytes: int
) -> float:
    """The largest ratio whose pages fit, in hundredths; 0 if not even sinks and window do.

    Args:
        tokens: of the context.
        method: settings of the attention method.
        page_bytes: of a page and its summary, all layers together.
        limit_bytes: how much the pages may take.
    """
    first, end = page_borders(tokens, method)
    free = limit_bytes // page_bytes - (num_pages(tokens) - (end - first))
    if free < 1 or end <= first:
        return 0.0
    # The number of pages is rounded, so a little less than the share itself.
    return int(100 * (free - 0.5) / (end - first)) / 100


def as_runs(pages: "np.ndarray") -> Runs:
    """Ascending pages as runs of neighbours."""
    import numpy as np

    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(pages, breaks)]


def from_runs(runs: Runs) -> "np.ndarray":
    """`as_runs` undone: int64, ascending."""
    import numpy as np

    return np.concatenate([np.arange(first, end) for first, end in runs])
