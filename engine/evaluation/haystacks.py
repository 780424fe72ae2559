"""Texts of any length to hide things in: noise, prose, code, and files that the user names.

A haystack is a row of units (sentences, definitions, lines); a needle goes between two of them.
Texts are generated unit by unit, so a longer one begins as a shorter one.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from hipcli.engine.evaluation.draws import integer
from hipcli.engine.evaluation.prose import read_grammar, tell_prose
from hipcli.engine.evaluation.source_code import tell_code

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")


class HaystackKind(NamedTuple):
    """A row of the table: what it is, its units from a chance, and how a needle stands in it."""

    summary: str
    units: Callable[[Random], Iterator[str]]
    wrap: str


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
