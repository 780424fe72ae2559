"""Texts of any length to hide things in: noise, prose, code, and files that the user names.

A haystack is a row of units (sentences, definitions, lines) with the tokens of each; a needle goes
between two of them. Texts are generated unit by unit, so a longer cell begins as a shorter one.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

import numpy as np

from hipcli.engine.evaluation.draws import integer
from hipcli.engine.evaluation.prose import read_grammar, tell_prose
from hipcli.engine.evaluation.source_code import tell_code

# Units that are encoded at once.
_BATCH = 256
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")


class HaystackKind(NamedTuple):
    """A row of the table: what it is, its units from a chance, and how a needle stands in it."""

    summary: str
    units: Callable[[Random], Iterator[str]]
    wrap: str


class Encoder(Protocol):
    """What of a tokenizer a haystack needs."""

    def encode(self, text: str) -> "EncodedText": ...


class EncodedText(Protocol):
    """Token ids int32 [N] and the characters [start, end) of each, [N, 2]."""

    @property
    def ids(self) -> np.ndarray: ...

    @property
    def offsets(self) -> np.ndarray: ...


def _noise(rng: Random) -> Iterator[str]:
    sentences = [alternative[0] for alternative in read_grammar()["noise"]]
    while True:
        yield from (f"{sentence} " for sentence in sentences[:-1])
        yield f"{sentences[-1]}\n\n"


def _prose(rng: Random) -> Iterator[str]:
    for _chapter, paragraph in tell_prose(rng):
        # Speech stays whole: a needle inside would be somebody's claim.
        sentences = [paragraph] if '"' in paragraph else _SENTENCE_END.split(paragraph)
        yield from (f"{sentence} " for sentence in sentences[:-1])
        yield f"{sentences[-1]}\n\n"


HAYSTACKS = {
    "noise": HaystackKind("the same few sentences over and over", _noise, "{} "),
    "prose": HaystackKind("a generated book", _prose, "{} "),
    "code": HaystackKind("generated source code", tell_code, "# {}\n"),
}


def files_kind(text: str) -> HaystackKind:
    """A haystack of the user's own text: its lines from a place drawn by chance, in a circle.

    Raises:
        ValueError: there is no visible character in it.
    """
    lines = text.splitlines(keepends=True)
    if not text.strip():
        raise ValueError("the haystack files hold no text")
    if not lines[-1].endswith("\n"):
        lines[-1] += "\n"

    def units(rng: Random) -> Iterator[str]:
        start = integer(rng, 0, len(lines))
        return itertools.cycle((*lines[start:], *lines[:start]))

    digest = hashlib.sha256(text.encode()).hexdigest()
    return HaystackKind(f"files {digest[:16]}", units, "{}\n")


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
