"""Speed and time left while a context is read, on a clock of the test's own."""

import random
from collections.abc import Callable

import pytest

from hipcli.engine.reading.pace import Pace

CHUNK = 512


def steady(start: int, end: int) -> float:
    return (end - start) / 1000


def growing(start: int, end: int) -> float:
    """Ten times slower at the end of 400,000 tokens than at their start."""
    return (end - start) / 1000 * (1 + 9 * (start + end) / 2 / 400_000)


def levelling(start: int, end: int) -> float:
    """Slower and slower up to 8,192 tokens, as slow as there from then on."""
    return (end - start) / 1000 * (1 + min(start, 8192) / 8192)


def warming_up(start: int, end: int) -> float:
    return steady(start, end) + (20.0 if start < CHUNK else 0.0)


NOISE = random.Random(5)


def uneven(start: int, end: int) -> float:
    return steady(start, end) * NOISE.uniform(0.7, 1.3)


def readings(
    cost_s: Callable[[int, int], float], total: int, first: int
) -> list[tuple[float, ...]]:
    """A reading chunk by chunk: seconds gone, tokens/s told, seconds left told."""
    now = 0.0
    pace = Pace(first, total, clock=lambda: now)
    assert (pace.tokens_per_s, pace.eta_s) == (0.0, None)
    told = []
    while first < total:
        end = min(first + CHUNK, total)
        now += cost_s(first, end)
        pace.advance(end)
        told.append((now, pace.tokens_per_s, pace.eta_s or 0.0))
        first = end
    return told


@pytest.mark.parametrize(
    ("cost_s", "total", "first"),
    [
        (steady, 30_000, 0),
        (steady, 400_000, 0),
        (steady, 400_000, 350_208),
        (growing, 400_000, 0),
        (growing, 400_000, 200_192),
        (levelling, 400_000, 0),
        (warming_up, 400_000, 0),
        (uneven, 100_000, 0),
        (uneven, 400_000, 0),
    ],
)
def test_within_a_fifth_after_a_tenth(
    cost_s: Callable[[int, int], float], total: int, first: int
) -> None:
    told = readings(cost_s, total, first)
    whole_s = told[-1][0]
    begun = [row for row in told if row[0] >= whole_s / 10 and row[0] < whole_s * 0.95]
    assert len(begun) > 10
    for now_s, _, eta_s in begun:
        assert eta_s == pytest.approx(whole_s - now_s, rel=0.2)
    assert told[-1][1] == pytest.approx((total - first) / whole_s)
    assert told[-1][2] == 0.0


def test_the_speed_after_a_tenth_is_that_of_the_whole() -> None:
    for cost_s in (steady, uneven):
        told = readings(cost_s, 400_000, 0)
        for row in told[len(told) // 10 :]:
            assert row[1] == pytest.approx(told[-1][1], rel=0.2)


def test_a_clock_that_stands_still_promises_nothing() -> None:
    pace = Pace(0, 1024, clock=lambda: 7.0)
    pace.advance(512)
    assert (pace.tokens_per_s, pace.eta_s) == (0.0, None)
