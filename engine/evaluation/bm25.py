"""Retrieval by words: the baseline that looks for passages without the model.

Source: Okapi BM25 as in Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and
Beyond (2009), section 3.4; the idf is ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.

    score(page) = sum over words w of the question of
        idf(w) * f(w) * (k1 + 1) / (f(w) + k1 * (1 - b + b * length / mean length))

A page is a block of 64 tokens; f(w) counts the word in it, length is its number of words. A word
belongs to the page where it begins. No stemming, no stop words: idf takes care of those.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from hipcli.engine.evaluation.placing import Placed
from hipcli.engine.methods.configs import PAGE_TOKENS

K1 = 1.2
B = 0.75
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class WordIndex:
    """Words of each page of a context.

    Args:
        pages: counts of words, one counter a page.
        lengths: words of each page.
        holders: in how many pages each word stands.
    """

    pages: tuple[Counter[str], ...]
    lengths: np.ndarray
    holders: Counter[str]

    @classmethod
    def of(cls, text: str, placed: Placed) -> "WordIndex":
        """The index of a text in a context; pages of the scaffold hold no words."""
        matches = list(_WORD.finditer(text))
        starts = np.array([match.start() for match in matches], dtype=np.int64)
        tokens = placed.text_start + np.searchsorted(placed.offsets[:, 1], starts, "right")
        pages: list[Counter[str]] = [Counter() for _ in range(-(-len(placed.ids) // PAGE_TOKENS))]
        for match, page in zip(matches, (tokens // PAGE_TOKENS).tolist(), strict=True):
            pages[page][match[0].lower()] += 1
        lengths = np.array([page.total() for page in pages], dtype=np.float64)
        holders = Counter(word for page in pages for word in page)
        return cls(tuple(pages), lengths, holders)

    def scores(self, question: str) -> np.ndarray:
        """Score of each page for a question: float64 [pages]."""
        scores = np.zeros(len(self.pages))
        normal = K1 * (1 - B + B * self.lengths / max(self.lengths.mean(), 1e-9))
        for word in _WORD.findall(question.lower()):
            holders = self.holders.get(word, 0)
            if not holders:
                continue
            idf = math.log(1 + (len(self.pages) - holders + 0.5) / (holders + 0.5))
            counts = np.array([page[word] for page in self.pages], dtype=np.float64)
            scores += idf * counts * (K1 + 1) / (counts + normal)
        return scores

    def ranking(self, question: str, first_token: int) -> list[int]:
        """Pages from the best to the worst, without those that end before `first_token`."""
        order = np.argsort(-self.scores(question), kind="stable").tolist()
        return [page for page in order if (page + 1) * PAGE_TOKENS > first_token]
