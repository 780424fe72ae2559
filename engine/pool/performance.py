"""How fast an instance generates, by two profiled tables: of batches and of lengths.

    T_layer(batch, lengths) = work(batch) + attention(lengths)        TPS = batch / (layers T_layer)

Work outside attention costs about the same for one request as for many, until the processors are
busy; attention costs by the tokens it reads, whoever's they are.

Source: Infinite-LLM v2, its performance model. Where this differs: a debtor waits for whichever is
slower, its own attention or the shipping of queries and the attention of its creditors.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A measured curve: linear between its points, and beyond the last as between the last two.

    Args:
        points: (x, y), x ascending, at least two.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        xs = [x for x, _ in self.points]
        if len(xs) < 2 or xs != sorted(set(xs)):
            raise ValueError(f"points are at {xs}; they must be two or more, ascending")

    def __call__(self, x: float) -> float:
        at = bisect_right(self.points, (x, float("inf")))
        at = min(max(at, 1), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[at - 1], self.points[at]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    """Seconds of one layer for one step of generation.

    Args:
        layers: of the model.
        work_s: outside attention, by the number of requests in the batch.
        attention_s: by the tokens of keys and values that are read.
        ship_s: queries there and results back, by the tokens that one creditor attends.
        far_s: what a creditor behind a slower network adds to that.
    """

    layers: int
    work_s: Table
    attention_s: Table
    ship_s: Table
    far_s: float = 0.0

    def step_s(
        self,
        batch: int,
        here_tokens: float,
        guest_tokens: float,
        away_tokens: Sequence[float],
        far: int = 0,
    ) -> float:
        """Seconds until each request of the batch has its next token.

        Args:
            batch: requests that this instance generates; 0 still attends for others.
            here_tokens: of its own requests, in its memory.
            guest_tokens: of other instances' requests, in its memory.
            away_tokens: of its own requests, per creditor. They work side by side.
            far: how many of the creditors are behind a slower network, one after another.
        """
        local_s = self._attention(here_tokens)
        remote_s = max(
            (self.ship_s(tokens) + self._attention(tokens) for tokens in away_tokens), default=0.0
        )
        remote_s += far * self.far_s
        work_s = self.work_s(batch) if batch else 0.0
        layer_s = work_s + max(local_s, remote_s) + self._attention(guest_tokens)
        return self.layers * layer_s

    def tokens_per_s(
        self,
        batch: int,
        here_tokens: float,
        guest_tokens: float,
        away_tokens: Sequence[float],
        far: int = 0,
    ) -> float:
        """Tokens that the instance generates in a second; arguments as of `step_s`."""
        if not batch:
            return 0.0
        return batch / self.step_s(batch, here_tokens, guest_tokens, away_tokens, far)

    def _attention(self, tokens: float) -> float:
        return self.attention_s(tokens) if tokens else 0.0
