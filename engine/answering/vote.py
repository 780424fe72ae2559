"""The heads vote for the passages that a question is about.

While the tokens of a question pass through the model, every query head scores every key of the
context exactly. Per head and token that gives a share of attention for each page: the softmax over
the maxima of the pages. Some pages draw attention whatever is asked: the first ones, tables of
contents, headings. The scaffold around the question ("Question:", the instruction, the turn
markers) is the same for every question, so what its tokens attend is that common part. A token of
the question votes with its share times how far, on a log scale, it exceeds the largest share that
the same head gives for the scaffold. The votes of all tokens and heads are added, and a page that
has the question's rare words counts more (`word_match.py`).

Formula found by measurement (docs/log.md); a relative of the idea is REFORM (compress, gather,
recompute; NeurIPS 2025).
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import max_pool1d

from hipcli.engine.events import Evidence
from hipcli.engine.store.pages import PAGE_TOKENS

# A word of a passage counts for those this close to it.
SENTENCE_TOKENS = 12

# Votes are multiplied by exp(this * coverage ** 2) of the question's words, in later rounds of the
# words that lead on from the passages found.
WORDS_WEIGHT = 5.0
LEADING_WEIGHT = 60.0
# A second look leaves every page votes above 0.
LEAST_LOOK = -60.0


@dataclass(slots=True)
class Ballot:
    """Votes for the pages of a context.

    Args:
        context_tokens: tokens that can be voted for, from position 0.
        distance_tokens: distance between query and keys while scoring.
        own_words: which tokens of the pass are the asker's own words, [start, end).
        kept_pages: of a pruned context which of its pages are in the store, where they stand side
            by side; None for all. What is handed in are pages of the context either way.
        first_token: keys before it are scaffold, which nobody votes for.
        coverage: fp32 [num_pages of the context], which part of the question's words each page
            has; None where words do not count.
        excluded: pages that nobody votes for.
        passages: in a later round, the pages whose words vote; they come before what these find.
        asked: in a later round, where the own words are passages, the words of the question behind
            them, [start, end). Passages have many words and most are not about the question. So a
            word counts as far as the question attends it or one near it, and a page's votes are
            those of its strongest word instead of all words together.
        head_weights: fp32 [num_layers, num_heads], what the vote of each head counts, where the
            votes are; None counts all alike.

    Attributes:
        word_votes: fp32 [tokens of own_words, num_pages], sum over heads so far; None before the
            first layer.
        look_weights: fp32 [num_pages], how key words and a second look weigh the votes; None
            before both.
        later: ballots of later rounds, whose pages take turns with this one's.
    """

    context_tokens: int
    distance_tokens: int
    own_words: tuple[int, int]
    kept_pages: np.ndarray | None = None
    first_token: int = 0
    coverage: np.ndarray | None = None
    excluded: Sequence[int] = ()
    passages: Sequence[int] = ()
    asked: tuple[int, int] | None = None
    head_weights: torch.Tensor | None = None
    word_votes: torch.Tensor | None = None
    word_weights: torch.Tensor | None = None
    look_weights: torch.Tensor | None = None
    later: list["Ballot"] = field(default_factory=list)
    # Of `coverage`, where the votes are: every layer asks for it.
    _page_weights: torch.Tensor | None = None

    @property
    def first_page(self) -> int | None:
        """Page of the store that has scaffold and text, if one has both."""
        page, offset = divmod(self.first_token, PAGE_TOKENS)
        if not offset or self.first_token >= self.context_tokens:
            return None
        if self.kept_pages is None:
            return page
        places = np.flatnonzero(self.kept_pages == page)
        return int(places[0]) if len(places) else None

    def count(self, layer: int, page_max: torch.Tensor, lse: torch.Tensor) -> None:
        """Let the heads of one layer vote.

        Args:
            layer: which layer.
            page_max: fp32 [T, num_heads, num_pages], the maximum score of each page's keys for the
                question's tokens.
            lse: fp32 [T, num_heads], log-sum-exp of page_max over pages.
        """
        votes = head_votes(self.own_words, page_max, lse)
        if self.head_weights is not None:
            votes.mul_(self.head_weights[layer].unsqueeze(-1))
        self.add(votes)

    def add(self, votes: torch.Tensor) -> None:
        """Add votes fp32 [words, num_heads, num_pages] of one layer."""
        summed = votes.sum(1)
        self.word_votes = summed if self.word_votes is None else self.word_votes + summed

    def weigh(self, log_share: torch.Tensor) -> None:
        """Weigh the words of passages by what the question behind them attends in one layer.

        Args:
            log_share: fp32 [T, num_heads, words], logarithm of the share of each passage's token
                in what the tokens of the pass attend.
        """
        if self.asked is None:
            raise ValueError("there is no question behind the passages")
        pages = -(-self.context_tokens // PAGE_TOKENS)
        weights = _lifted(log_share[self.own_words[1] :], self._asked_alone, pages).sum((0, 1))
        self.word_weights = weights if self.word_weights is None else self.word_weights + weights

    @property
    def _asked_alone(self) -> tuple[int, int]:
        """The question's own words where the passages before them do not count."""
        start, end = self.asked or (0, 0)
        return start - self.own_words[1], end - self.own_words[1]

    def votes(self, *, looked: bool = True) -> torch.Tensor:
        """Votes of the words together, weighed by the words that stand on a page: fp32 [pages].

        Args:
            looked: a second look weighs them too, if there was one.
        """
        if self.word_votes is None:
            raise ValueError("no layer has voted")
        if self.word_weights is None:
            votes = self.word_votes.sum(0)
        else:
            near = max_pool1d(self.word_weights[None], 2 * SENTENCE_TOKENS + 1, 1, SENTENCE_TOKENS)
            votes = (self.word_votes * near.T).amax(0)
        if self.coverage is not None:
            if self._page_weights is None:
                here = self.coverage if self.kept_pages is None else self.coverage[self.kept_pages]
                weight = WORDS_WEIGHT if self.asked is None else LEADING_WEIGHT
                weights = np.exp(weight * np.square(here[: len(votes)]))
                self._page_weights = torch.from_numpy(weights).to(votes.device)
            votes = votes * self._page_weights
        if self.look_weights is not None and looked:
            votes = votes * self.look_weights
        if len(self.excluded):
            votes[torch.tensor(self._places(self.excluded), device=votes.device)] = 0
        return votes

    def margin(self, pages: Sequence[int]) -> float:
        """Logarithm of the votes of the first of some pages over those of the second."""
        first, second = self.votes()[torch.tensor(pages[:2])].clamp(min=1e-30).log().tolist()
        return first - second

    def look_again(self, pages: Sequence[int], scores: torch.Tensor) -> None:
        """Weigh the votes by a second look at some pages; all others count as the worst of them.

        Args:
            pages: of the store, those with most votes.
            scores: fp32 [pages], what is added to the logarithm of the votes of each of them.
        """
        votes = self.votes()
        factors = (scores - scores.amax()).clamp(min=LEAST_LOOK).exp().to(votes.device)
        weights = votes.new_full((len(votes),), factors.amin().item())
        weights[torch.tensor(pages, device=votes.device)] = factors
        self.look_weights = weights * (1.0 if self.look_weights is None else self.look_weights)

    def words_found(self) -> float:
        """The greatest part of the question's words that a page has; 0 where they do not count."""
        return 0.0 if self.coverage is None else float(self.coverage.max(initial=0))

    def best(
        self, first_token: int, end_token: int, count: int, scores: torch.Tensor | None = None
    ) -> list[int]:
        """The first `count` pages of `order`, as the store counts them."""
        return self._places(self.order(first_token, end_token, scores)[:count])

    def leaders(self, count: int, low: int, high: int) -> torch.Tensor:
        """Pages of the store with most votes so far and their right neighbours, int64 ascending.

        Args:
            count: how many at most.
            low, high: they lie in [low, high).
        """
        votes = self.votes()
        inside = votes[low:high]
        best = inside.topk(min(-(-count // 2), len(inside))).indices + low
        pages = torch.stack((best, best + 1), 1).flatten()[:count].unique()
        return pages[pages < high]

    def _places(self, pages: Iterable[int]) -> list[int]:
        """Where pages of the context stand in the store; those that are not there are left out."""
        if self.kept_pages is None:
            return list(pages)
        there = {int(page): place for place, page in enumerate(self.kept_pages)}
        return [there[page] for page in pages if page in there]

    def ranking(self, first_token: int, end_token: int) -> list[int]:
        """Pages from most votes to fewest, of those that hold some token of [first, end).

        Of several rounds the first pages come first, then the second ones, and so on.
        """
        ballots = (self, *self.later)
        rounds = [[*b.passages, *b.order(first_token, end_token)] for b in ballots]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*rounds))
        return [page for page in dict.fromkeys(turns) if page is not None]

    def order(
        self, first_token: int, end_token: int, scores: torch.Tensor | None = None
    ) -> list[int]:
        """`ranking` of this round alone, by its votes or by scores fp32 [pages of the store]."""
        by = self.votes() if scores is None else scores
        order: list[int] = by.argsort(descending=True).tolist()
        if self.kept_pages is not None:
            order = self.kept_pages[order].tolist()
        return [
            page
            for page in order
            if (page + 1) * PAGE_TOKENS > first_token and page * PAGE_TOKENS < end_token
        ]

    def by_words(self, first_token: int, end_token: int) -> list[int]:
        """The order of the words alone, where they count: pages that have some of them."""
        if self.coverage is None:
            return []
        covered = self.coverage
        # Of pages that have the same words the votes say which comes first.
        order = sorted(self.order(first_token, end_token), key=lambda page: -covered[page])
        return [page for page in order if covered[page] > 0]

    def _by_page(self) -> Mapping[int, float]:
        """Votes by page of the context over those of the best one, for those in the store."""
        shares = [ballot.votes(looked=False) for ballot in (self, *self.later)]
        found = torch.stack([votes / votes.max().clamp(min=1e-30) for votes in shares]).amax(0)
        pages = range(len(found)) if self.kept_pages is None else self.kept_pages.tolist()
        return dict(zip(pages, found.tolist(), strict=True))

    def pages(self, first_token: int, end_token: int, budget_tokens: int) -> torch.Tensor:
        """The winning pages, each with its right neighbour, int64 [n], as the store counts them.

        A passage that starts near the end of a page goes on in the next one. Neighbours stand side
        by side in the order of the text, and those with the best page last.

        Args:
            first_token, end_token: where what may be chosen begins and ends.
            budget_tokens: how many tokens the pages may hold together.
        """
        limit = budget_tokens // PAGE_TOKENS
        last = -(-end_token // PAGE_TOKENS)
        there = None if self.kept_pages is None else set(self.kept_pages.tolist())
        chosen: dict[int, None] = {}
        for page in self.ranking(first_token, end_token):
            for candidate in (page, page + 1):
                missing = there is not None and candidate not in there
                if candidate < last and len(chosen) < limit and not missing:
                    chosen[candidate] = None
            if len(chosen) >= limit:
                break
        pages = torch.tensor(_best_last(list(chosen)), dtype=torch.long)
        if self.kept_pages is None:
            return pages
        return torch.searchsorted(torch.from_numpy(self.kept_pages), pages)

    def evidence(self, first_token: int, end_token: int, count: int) -> tuple[Evidence, ...]:
        """The `count` pages of [first, end) with most votes, best first, scores relative to it."""
        if self.word_votes is None or not count:
            return ()
        order = self.ranking(first_token, end_token)[:count]
        votes = self._by_page()
        order = [page for page in order if votes[page] > 0]
        scores = [math.log(votes[page] / votes[order[0]]) for page in order]
        if self.look_weights is not None:
            # A look changes the order alone: scores stay votes, and none is above one before it.
            scores = list(itertools.accumulate(scores, min))
        return tuple(
            Evidence(
                max(page * PAGE_TOKENS, first_token),
                min((page + 1) * PAGE_TOKENS, end_token),
                score,
            )
            for page, score in zip(order, scores, strict=True)
        )


def _best_last(pages: list[int]) -> list[int]:
    """Runs of neighbours among pages given best first, the run of the best page last."""
    place = {page: number for number, page in enumerate(pages)}
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and runs[-1][-1] == page - 1:
            runs[-1].append(page)
        else:
            runs.append([page])
    runs.sort(key=lambda run: min(place[page] for page in run), reverse=True)
    return [page for run in runs for page in run]


def head_votes(
    own_words: tuple[int, int], page_max: torch.Tensor, lse: torch.Tensor, all_pages: int = 0
) -> torch.Tensor:
    """How each word votes by each head of one layer: fp32 [words, num_heads, num_pages].

    Args:
        own_words: which tokens of the pass vote, [start, end); the others are scaffold.
        page_max, lse: as in `Ballot.count`.
        all_pages: how many pages lse is of, where page_max has some of them; 0 for its own.
    """
    return _lifted(page_max - lse.unsqueeze(-1), own_words, all_pages or page_max.shape[-1])


def _lifted(log_share: torch.Tensor, own_words: tuple[int, int], even: int) -> torch.Tensor:
    """Shares of the own words times how far they exceed what the scaffold attends.

    Args:
        log_share: fp32 [T, num_heads, n].
        own_words: which of the T tokens count, [start, end); the others are scaffold.
        even: an even share, 1 / even, counts as common too: it keeps the logarithm tame.

    Returns:
        fp32 [own words, num_heads, n].
    """
    start, end = own_words
    words = log_share[start:end]
    scaffold = torch.cat((log_share[:start], log_share[end:]))
    common = torch.full_like(words[:1], 1.0 / even)
    if scaffold.shape[0]:
        common += scaffold.amax(0, keepdim=True).exp()
    return (words - common.log()).clamp_(min=0).mul_(words.exp())
