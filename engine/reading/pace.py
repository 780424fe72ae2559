"""How fast a context is read, and how long the rest of it will take."""

import time
from collections.abc import Callable

import numpy as np

# Fewer chunks than this say nothing about whether reading grows slower.
_MIN_CHUNKS = 8
# A slope smaller than so many of its standard errors may be chance.
_SURE_ERRORS = 3.0


class Pace:
    """The times of the chunks of one reading.

    Args:
        first_token: tokens before it come from a session and cost nothing.
        total_tokens: of the whole context.
        clock: seconds, monotonic.
    """

    def __init__(
        self, first_token: int, total_tokens: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._total_tokens = total_tokens
        self._clock = clock
        self._ends = [first_token]
        self._times_s = [clock()]

    def advance(self, done_tokens: int) -> None:
        """A chunk was read; `done_tokens` of the context are done now."""
        self._ends.append(done_tokens)
        self._times_s.append(self._clock())

    @property
    def tokens_per_s(self) -> float:
        """Tokens read by the second so far, cached ones not counted; 0.0 before the first chunk."""
        elapsed_s = self._times_s[-1] - self._times_s[0]
        return (self._ends[-1] - self._ends[0]) / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds that the rest will take; None before the first chunk.

        The later half of the chunks counts: the first one also pays for what is done once. Where
        their time grows with the place in the text beyond doubt, the line through them goes on.
        """
        chunks = len(self._ends) - 1
        if chunks == 0 or self._times_s[-1] <= self._times_s[0]:
            return None
        latest = chunks // 2
        ends = np.array(self._ends[latest:], dtype=np.float64)
        lengths = np.diff(ends)
        middles = ends[:-1] + lengths / 2
        costs = np.diff(np.array(self._times_s[latest:])) / lengths
        mean_s, mean_place = float(costs.mean()), float(middles.mean())
        rest_tokens = self._total_tokens - ends[-1]
        rest_middle = ends[-1] + rest_tokens / 2
        growth = _growth(middles - mean_place, costs - mean_s) * (rest_middle - mean_place)
        return float(rest_tokens * (mean_s + growth))


def _growth(places: np.ndarray, costs: np.ndarray) -> float:
    """The slope of the line through costs by place, both about their means; 0.0 unless it is sure
    to rise.

    Args:
        places: tokens, shape [chunks].
        costs: seconds a token, shape [chunks].
    """
    if len(places) < _MIN_CHUNKS:
        return 0.0
    spread = float(places @ places)
    slope = float(places @ costs) / spread
    misses = costs - slope * places
    error = (float(misses @ misses) / (len(places) - 2) / spread) ** 0.5
    return slope if slope > _SURE_ERRORS * error else 0.0
