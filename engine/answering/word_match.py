"""Which words of a question stand on which pages of its context, found among the token ids.

The heads know what a question means, and overlook now and then the one page that says its rare
words verbatim; words find just that, and nothing else. So the vote is weighed by them (`vote.py`).
A word counts by its inverse document frequency as in BM25 (Robertson and Zaragoza 2009, section
3.4), ln(1 + (N - n + 0.5) / (n + 0.5)) for n of N pages. A word that the context lacks counts most
of all: a question whose words are hardly in the text should hardly be answered by words.
"""

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from hipcli.engine.methods.configs import PAGE_TOKENS

# A page also has the words that stand this close to it: sentences run over its borders.
NEAR_TOKENS = 4
# Of a longer question the first words count.
MAX_WORDS = 64

_WORD = re.compile(r"\w+")

Spelling = tuple[int, ...]


def spellings(question: str, encode: Callable[[str], Sequence[int]]) -> list[tuple[Spelling, ...]]:
    """For each word of a question, how it may stand in the context as token ids.

    Args:
        question: the asker's own words.
        encode: text to token ids.
    """
    words = dict.fromkeys(word.lower() for word in _WORD.findall(question))
    return [
        tuple(
            dict.fromkeys(
                tuple(int(token) for token in encode(blank + form))
                for form in (word, word.capitalize(), word.upper())
                for blank in (" ", "")
            )
        )
        for word in list(words)[:MAX_WORDS]
    ]


def coverage(context_ids: np.ndarray, words: Sequence[tuple[Spelling, ...]]) -> np.ndarray:
    """Which part of a question's words each page has, rare words counting more.

    Args:
        context_ids: int32 [N].
        words: spellings of each word.

    Returns:
        fp32 [num_pages], 0 to 1.
    """
    num_pages = -(-len(context_ids) // PAGE_TOKENS)
    covered, total = np.zeros(num_pages, dtype=np.float32), 0.0
    for word in words:
        present = np.zeros(num_pages, dtype=bool)
        for spelling in word:
            places = _places(context_ids, spelling)
            for edge in (-NEAR_TOKENS, len(spelling) - 1 + NEAR_TOKENS):
                pages = (places + edge) // PAGE_TOKENS
                present[pages.clip(0, num_pages - 1)] = True
        holders = int(present.sum())
        idf = math.log(1 + (num_pages - holders + 0.5) / (holders + 0.5))
        covered += idf * present
        total += idf
    return covered / total if total else covered


def _places(ids: np.ndarray, spelling: Spelling) -> np.ndarray:
    """Where a row of tokens begins in the context: int64 [n]."""
    if not spelling or len(spelling) > len(ids):
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(ids[: len(ids) - len(spelling) + 1] == spelling[0])
    for offset, token in enumerate(spelling[1:], 1):
        places = places[ids[places + offset] == token]
    return places
