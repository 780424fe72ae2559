"""Texts in tokens: units of a haystack counted, and a text's place in its prompt."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hipcli.engine.evaluation.case import Probe

# Units that are encoded at once.
_BATCH = 256


class Encoder(Protocol):
    """What of a tokenizer a haystack needs."""

    def encode(self, text: str) -> "EncodedText": ...


class EncodedText(Protocol):
    """Token ids int32 [N] and the characters [start, end) of each, [N, 2]."""

    @property
    def ids(self) -> np.ndarray: ...

    @property
    def offsets(self) -> np.ndarray: ...


@dataclass(slots=True)
class Haystack:
    """Units that are made as they are needed.

    Args:
        source: where they come from.
        tokenizer: counts them.
        wrap: a needle between units, "{}" standing for its sentence.

    Attributes:
        units: those made so far.
        ends: tokens up to the end of each unit.
    """

    source: Iterator[str]
    tokenizer: Encoder
    wrap: str
    units: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def within(self, num_tokens: int) -> int:
        """How many units fit into `num_tokens` tokens (fewer if the source ends)."""
        while not self.ends or self.ends[-1] <= num_tokens:
            batch = list(itertools.islice(self.source, _BATCH))
            if not batch:
                break
            base = self.ends[-1] if self.ends else 0
            self.ends += (base + unit_ends(batch, self.tokenizer)).tolist()
            self.units += batch
        return int(np.searchsorted(self.ends, num_tokens, "right"))


def unit_ends(units: Iterable[str], tokenizer: Encoder) -> np.ndarray:
    """Tokens up to the end of each unit, when they are encoded in one piece: int64 [n]."""
    texts = list(units)
    borders = np.cumsum([len(text) for text in texts])
    starts = tokenizer.encode("".join(texts)).offsets[:, 0]
    return np.searchsorted(starts, borders, "left")


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
