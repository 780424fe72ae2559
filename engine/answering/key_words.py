"""Which pages have the words that a question is about, found by words and heads together.

"Which hidden figure belongs to the clock?" is about the clock: of its words, that one stands in the
text, and the heads find it there. A word that the text lacks ("figure") is looked for everywhere,
and a page that has something like it may get more votes than all the pages with the clock, of which
none is much better than the others. So a word that few pages have is a key as far as its votes go
to those: by which part of them. A page counts by the strongest key it has. Where the votes follow
no word, as where question and text share none, words change next to nothing.

Among pages with the same key the one that answers has something of the other words too, each a
little. So such pages are put in the order of the sum of logarithms over words, where one word with
many votes says less than several with some.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hipcli.engine.answering.vote import Ballot
from hipcli.engine.answering.word_match import WORD, Spelling, presence

# The logarithm of votes gains so much on a page that has a word to which all of its votes go.
KEY_WEIGHT = 1.0
# A word on more than this part of the pages says too little about which one.
MOST_PAGES = 0.1
# A word's votes for a page begin to tell from this part of the greatest votes of a page on.
TELLING_PART = 0.03


@dataclass(frozen=True, slots=True, eq=False)
class KeyWords:
    """The words of a question, and where they stand.

    Args:
        tokens: for each word which of the question's own tokens spell it.
        present: bool [words, num_pages of the store], which pages have it.
    """

    tokens: Sequence[Sequence[int]]
    present: np.ndarray

    @classmethod
    def of(
        cls,
        question_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        words: Sequence[tuple[Spelling, ...]],
        context_ids: np.ndarray,
        kept_pages: np.ndarray | None,
    ) -> "KeyWords":
        """Find the words of a question in its context.

        Args:
            question_ids: the asker's own words.
            decode: token ids to text.
            words: `spellings` of the same question.
            context_ids: int32 [N].
            kept_pages: of a pruned context, which of its pages are in the store.
        """
        present = presence(context_ids, words)
        if kept_pages is not None:
            present = present[:, kept_pages]
        return cls(_tokens_of_words(question_ids, decode)[: len(words)], present)

    def strengths(self, word_votes: torch.Tensor) -> torch.Tensor:
        """How strong the strongest key of each page is: fp32 [pages], 0 to 1.

        Args:
            word_votes: fp32 [own tokens, pages].
        """
        count = word_votes.shape[1]
        present = torch.from_numpy(self.present[:, :count]).to(word_votes.device)
        most = max(1.0, MOST_PAGES * self.present.shape[1])
        strongest = word_votes.new_zeros(count)
        for tokens, here, holders in zip(
            self.tokens, present, self.present.sum(1).tolist(), strict=True
        ):
            if 0 < holders <= most:
                votes = word_votes[list(tokens)].sum(0)
                part = (votes * here).sum() / votes.sum().clamp(min=1e-30)
                strongest = torch.maximum(strongest, part * here)
        return strongest


def worth_a_look(
    ballot: Ballot, keys: KeyWords, span: tuple[int, int], count: int
) -> tuple[list[int], list[int]]:
    """Weigh the votes of a ballot by its key words; which pages are best then, best first.

    Returns:
        `count` pages of the store by votes, and by the votes of all words.
    """
    words = ballot.word_votes
    assert words is not None, "the heads have voted"
    weights = (KEY_WEIGHT * keys.strengths(words)).exp()
    ballot.look_weights = weights
    by_words = of_all_words(words) * weights
    return ballot.best(*span, count), ballot.best(*span, count, by_words)


def of_all_words(word_votes: torch.Tensor) -> torch.Tensor:
    """Votes of all words, each by its logarithm: fp32 [pages].

    Args:
        word_votes: fp32 [own tokens, pages].
    """
    telling = TELLING_PART * word_votes.sum(0).amax().clamp(min=1e-30)
    return (word_votes / telling).log1p().sum(0)


def _tokens_of_words(
    question_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[list[int]]:
    """For each different word of a question, in the order of `spellings`, the tokens it is in."""
    ends = [len(decode(question_ids[: number + 1])) for number in range(len(question_ids))]
    starts = [0, *ends[:-1]]
    tokens: dict[str, list[int]] = {}
    for word in WORD.finditer(decode(question_ids)):
        borders = enumerate(zip(starts, ends, strict=True))
        held = [n for n, (start, end) in borders if start < word.end() and end > word.start()]
        tokens.setdefault(word[0].lower(), []).extend(held)
    return list(tokens.values())
