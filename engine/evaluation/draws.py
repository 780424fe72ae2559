"""Drawing by chance, the same on every Python: only `Random.random` is promised to be."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


def integer(rng: Random, low: int, high: int) -> int:
    """A number of [low, high)."""
    return low + int(rng.random() * (high - low))


def draw(rng: Random, items: Sequence[Item]) -> Item:
    """One of the items."""
    return items[integer(rng, 0, len(items))]


def shuffled(rng: Random, items: Sequence[Item]) -> list[Item]:
    """All items in an order drawn by chance."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = integer(rng, 0, last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def some(rng: Random, items: Sequence[Item], count: int) -> list[Item]:
    """`count` different items, in an order drawn by chance.

    Raises:
        ValueError: there are not so many.
    """
    if count > len(items):
        raise ValueError(f"{count} items wanted, there are {len(items)}")
    return shuffled(rng, items)[:count]


def digits(rng: Random, count: int) -> str:
    """A number of `count` digits that does not begin with 0."""
    return str(integer(rng, 10 ** (count - 1), 10**count))


def hex_word(rng: Random, count: int = 8) -> str:
    """`count` hexadecimal digits, the first one a letter so that nobody reads a number."""
    first = "abcdef"[integer(rng, 0, 6)]
    return first + "".join("0123456789abcdef"[integer(rng, 0, 16)] for _ in range(count - 1))
