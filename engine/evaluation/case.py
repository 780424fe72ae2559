"""What a task hides and asks, before it has become a text."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Needle:
    """A sentence to hide, and where: 0.0 is the start of the text, 1.0 its end."""

    sentence: str
    depth: float


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about what was hidden.

    Args:
        question: as a user would ask.
        answers: strings of which a right answer holds all.
        needles: numbers of the needles that a reader must have seen; none where the whole text
            is the evidence.
        wording: "" asks in the text's words; anything else marks a wording with figures of its own.
        rivals: strings that a right answer does not hold.
        max_new_tokens: room for the answer.
    """

    question: str
    answers: tuple[str, ...]
    needles: tuple[int, ...] = ()
    wording: str = ""
    rivals: tuple[str, ...] = ()
    max_new_tokens: int = 24


@dataclass(frozen=True, slots=True)
class Draft:
    """A task for one text.

    Args:
        needles: what is hidden, in any order.
        probes: what is asked.
        units: pieces of a text of the task's own, given how many are wanted; None hides the
            needles in a haystack.
        head, tail: what opens and closes the text.
    """

    needles: tuple[Needle, ...]
    probes: tuple[Probe, ...]
    units: Callable[[int], list[str]] | None = None
    head: str = ""
    tail: str = ""
