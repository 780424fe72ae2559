"""What a task asks for, before and after it has become a text. No torch, no model."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


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


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A text as the context of a prompt.

    Args:
        ids: int32 [N], everything before the question.
        prefix_tokens: how many of them are scaffold and instructions.
        text_start: where the text begins.
        offsets: int32 [T, 2], the characters [start, end) of each of the text's tokens.
    """

    ids: np.ndarray
    prefix_tokens: int
    text_start: int
    offsets: np.ndarray

    def tokens_of(self, start: int, end: int) -> tuple[int, int]:
        """Context tokens [first, last) that touch characters [start, end) of the text."""
        first = int(np.searchsorted(self.offsets[:, 1], start, "right"))
        last = int(np.searchsorted(self.offsets[:, 0], end, "left"))
        return self.text_start + first, self.text_start + last


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A text with its needles in it, ready to be asked about.

    Args:
        text: of the document.
        placed: the text in the prompt.
        needles: context tokens [start, end) of each needle, in the draft's order.
        probes: what is asked.
    """

    text: str
    placed: Placed
    needles: tuple[tuple[int, int], ...]
    probes: tuple[Probe, ...]
