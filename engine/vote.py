"""The heads vote for the passages that a question is about.

While the tokens of a question pass through the model, every query head scores every key of the
context exactly. Per head and token that gives a share of attention for each page: the softmax over
the maxima of the pages. Some pages draw attention whatever is asked: the first ones, tables of
contents, headings. The scaffold around the question ("Question:", the instruction, the turn
markers) is the same for every question, so what its tokens attend is that common part. A token of
the question votes with its share times how far, on a log scale, it exceeds the largest share that
the same head gives for the scaffold. The votes of all tokens and heads are added.

Formula found by measurement (docs/log.md); a relative of the idea is REFORM (compress, gather,
recompute; NeurIPS 2025).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hipcli.engine.events import Evidence
from hipcli.engine.store.pages import PAGE_TOKENS


@dataclass(slots=True)
class Ballot:
    """Votes for the pages of a context.

    Args:
        context_tokens: tokens that can be voted for, from position 0.
        distance_tokens: distance between query and keys while scoring.
        own_words: which tokens of the pass are the asker's own words, [start, end).
        kept_pages: of a pruned context which of its pages are in the store, where they stand side
            by side; None for all. What is handed in are pages of the context either way.

    Attributes:
        votes: fp32 [num_pages], sum over heads and tokens so far; None before the first layer.
    """

    context_tokens: int
    distance_tokens: int
    own_words: tuple[int, int]
    kept_pages: np.ndarray | None = None
    votes: torch.Tensor | None = None

    def count(self, layer: int, page_max: torch.Tensor, lse: torch.Tensor) -> None:
        """Let the heads of one layer vote.

        Args:
            layer: which layer.
            page_max: fp32 [T, num_heads, num_pages], the maximum score of each page's keys for the
                question's tokens.
            lse: fp32 [T, num_heads], log-sum-exp of page_max over pages.
        """
        log_share = page_max - lse.unsqueeze(-1)
        start, end = self.own_words
        words = log_share[start:end]
        scaffold = torch.cat((log_share[:start], log_share[end:]))
        # An even share of the context counts as common too: it keeps the logarithm tame.
        common = torch.full_like(words[:1], 1.0 / words.shape[-1])
        if scaffold.shape[0]:
            common += scaffold.amax(0, keepdim=True).exp()
        votes = (words - common.log()).clamp_(min=0).mul_(words.exp()).sum(dim=(0, 1))
        self.votes = votes if self.votes is None else self.votes + votes

    def ranking(self, first_token: int, end_token: int) -> list[int]:
        """Pages from most votes to fewest, of those that hold some token of [first, end)."""
        if self.votes is None:
            raise ValueError("no layer has voted")
        order: list[int] = self.votes.argsort(descending=True).tolist()
        if self.kept_pages is not None:
            order = self.kept_pages[order].tolist()
        return [
            page
            for page in order
            if (page + 1) * PAGE_TOKENS > first_token and page * PAGE_TOKENS < end_token
        ]

    def _by_page(self) -> Mapping[int, float]:
        """Votes by page of the context, for those in the store."""
        found = [] if self.votes is None else self.votes.tolist()
        pages = range(len(found)) if self.kept_pages is None else self.kept_pages.tolist()
        return dict(zip(pages, found, strict=True))

    def pages(self, first_token: int, end_token: int, budget_tokens: int) -> torch.Tensor:
        """The winning pages, each with its right neighbour, int64 ascending, as the store counts.

        A passage that starts near the end of a page goes on in the next one.

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
        pages = torch.tensor(sorted(chosen), dtype=torch.long)
        if self.kept_pages is None:
            return pages
        return torch.searchsorted(torch.from_numpy(self.kept_pages), pages)

    def evidence(self, first_token: int, end_token: int, count: int) -> tuple[Evidence, ...]:
        """The `count` pages of [first, end) with most votes, best first, scores relative to it."""
        if self.votes is None:
            return ()
        order = self.ranking(first_token, end_token)[:count]
        votes = self._by_page()
        order = [page for page in order if votes[page] > 0]
        return tuple(
            Evidence(
                max(page * PAGE_TOKENS, first_token),
                min((page + 1) * PAGE_TOKENS, end_token),
                math.log(votes[page] / votes[order[0]]),
            )
            for page in order
        )
