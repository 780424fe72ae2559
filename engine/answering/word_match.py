"""Which words of a question stand on which pages of its context, found among the token ids.

The heads know what a question means, and overlook now and then the one page that says its rare
words verbatim; words find just that, and nothing else. So the vote is weighed by them (`vote.py`).
A word counts by its inverse document frequency as in BM25 (Robertson and Zaragoza 2009, section
3.4), ln(1 + (N - n + 0.5) / (n + 0.5)) for n of N pages. A word that the context lacks counts most
of all: a question whose words are hardly in the text should hardly be answered by words.

A question that takes several facts names the first one only: "Where is the trombone?" has no word
of "Zadie went to the attic". So in later rounds the words count that stand beside the question's in
the same sentence ("Zadie picked up the trombone").
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hipcli.engine.methods.configs import PAGE_TOKENS

# A page also has the words that stand this close to it: sentences run over its borders.
NEAR_TOKENS = 4
# Of a longer question the first words count.
MAX_WORDS = 64

# A sentence that goes on beyond its page is read so far.
SENTENCE_TOKENS = 24
# Its words lead on if the rarest word of the question that it has weighs so much of the rarest one
# that the context has.
LEADING_PART = 0.8

WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+")

Spelling = tuple[int, ...]


def spellings(question: str, encode: Callable[[str], Sequence[int]]) -> list[tuple[Spelling, ...]]:
    """For each word of a question, how it may stand in the context as token ids.

    Args:
        question: the asker's own words.
        encode: text to token ids.
    """
    words = dict.fromkeys(word.lower() for word in WORD.findall(question))
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
    present = presence(context_ids, words)
    covered, total = np.zeros(present.shape[1], dtype=np.float32), 0.0
    for here in present:
        weight = idf(here)
        covered += weight * here
        total += weight
    return covered / total if total else covered


def presence(context_ids: np.ndarray, words: Sequence[tuple[Spelling, ...]]) -> np.ndarray:
    """Which pages have which word: bool [words, num_pages]; arguments as of `coverage`."""
    present = [_present(context_ids, word) for word in words]
    return np.array(present, dtype=bool).reshape(len(words), -(-len(context_ids) // PAGE_TOKENS))


def _present(context_ids: np.ndarray, word: tuple[Spelling, ...]) -> np.ndarray:
    """Which pages have a word: bool [num_pages]."""
    num_pages = -(-len(context_ids) // PAGE_TOKENS)
    present = np.zeros(num_pages, dtype=bool)
    for spelling in word:
        places = _places(context_ids, spelling)
        for edge in (-NEAR_TOKENS, len(spelling) - 1 + NEAR_TOKENS):
            pages = (places + edge) // PAGE_TOKENS
            present[pages.clip(0, num_pages - 1)] = True
    return present


def idf(present: np.ndarray) -> float:
    """Inverse document frequency of a word that stands on these pages, bool [num_pages]."""
    holders = int(present.sum())
    return math.log(1 + (len(present) - holders + 0.5) / (holders + 0.5))


@dataclass(frozen=True, slots=True)
class Reader:
    """What later rounds read passages with.

    Args:
        question: the asker's own words.
        encode: text to token ids.
        decode: token ids to text.
    """

    question: str
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]

    def leading_words(
        self, context_ids: np.ndarray, pages: Sequence[int], span: tuple[int, int]
    ) -> list[tuple[Spelling, ...]]:
        """Spellings of the words beside the question's in the best sentence of some pages.

        Args:
            context_ids: int32 [N].
            pages: where the sentence may stand.
            span: first and end token of what may be read.

        Returns:
            Nothing where no sentence has the question's rare words.
        """
        asked = dict.fromkeys(word.lower() for word in WORD.findall(self.question))
        found = spellings(self.question, self.encode)
        weights: dict[str, float] = {}
        for word, spelling in zip(asked, found, strict=False):
            present = _present(context_ids, spelling)
            if present.any():
                weights[word] = idf(present)
        best, most = "", (LEADING_PART * max(weights.values(), default=0.0), 0.0)
        for sentence in self._sentences(context_ids, pages, span):
            words = {word.lower() for word in WORD.findall(sentence)}
            held = [weights[word] for word in words if word in weights]
            # One rare word says more than several common ones.
            if held and (max(held), sum(held)) > most:
                best, most = sentence, (max(held), sum(held))
        others = [word for word in WORD.findall(best) if word.lower() not in asked]
        return spellings(" ".join(others), self.encode)

    def _sentences(
        self, context_ids: np.ndarray, pages: Sequence[int], span: tuple[int, int]
    ) -> Iterator[str]:
        for page in pages:
            start = max(page * PAGE_TOKENS - SENTENCE_TOKENS, span[0])
            end = min((page + 1) * PAGE_TOKENS + SENTENCE_TOKENS, span[1])
            yield from _SENTENCE_END.split(self.decode(context_ids[start:end].tolist()))


def _places(ids: np.ndarray, spelling: Spelling) -> np.ndarray:
    """Where a row of tokens begins in the context: int64 [n]."""
    if not spelling or len(spelling) > len(ids):
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(ids[: len(ids) - len(spelling) + 1] == spelling[0])
    for offset, token in enumerate(spelling[1:], 1):
        places = places[ids[places + offset] == token]
    return places
