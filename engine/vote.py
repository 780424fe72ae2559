"""The heads vote for the passages that a question is about.

While the tokens of a question pass through the model, every query head scores every key of the
context exactly. Per head and token: the maximum of each page, log-softmax over pages; then the
maximum over the question's tokens; then log-sum-exp over all heads of all layers. What is high
after that is where the model looks. Formula found by measurement (docs/log.md); a relative is
REFORM (compress, gather, recompute; NeurIPS 2025).
"""

from dataclasses import dataclass

import torch

from hipcli.engine.events import Evidence
from hipcli.engine.store.pages import PAGE_TOKENS


@dataclass(slots=True)
class Ballot:
    """Votes for the pages of a context.

    Args:
        context_tokens: tokens that can be voted for, from position 0.
        distance_tokens: distance between query and keys while scoring.

    Attributes:
        votes: fp32 [num_pages], log-sum-exp over the heads so far; None before the first layer.
    """

    context_tokens: int
    distance_tokens: int
    votes: torch.Tensor | None = None

    def count(self, layer: int, page_max: torch.Tensor, lse: torch.Tensor) -> None:
        """Let the heads of one layer vote.

        Args:
            layer: which layer.
            page_max: fp32 [T, num_heads, num_pages], the maximum score of each page's keys for the
                question's tokens.
            lse: fp32 [T, num_heads], log-sum-exp of page_max over pages.
        """
        per_head = (page_max - lse.unsqueeze(-1)).amax(0)
        layer_votes = per_head.logsumexp(0)
        self.votes = layer_votes if self.votes is None else torch.logaddexp(self.votes, layer_votes)

    def ranking(self, first_token: int) -> list[int]:
        """Pages from most votes to fewest, without those that end before `first_token`."""
        if self.votes is None:
            raise ValueError("no layer has voted")
        order: list[int] = self.votes.argsort(descending=True).tolist()
        return [page for page in order if (page + 1) * PAGE_TOKENS > first_token]

    def pages(self, first_token: int, budget_tokens: int) -> torch.Tensor:
        """The winning pages, each with its right neighbour, int64 ascending.

        A passage that starts near the end of a page goes on in the next one.

        Args:
            first_token: where the documents begin.
            budget_tokens: how many tokens the pages may hold together.
        """
        limit = budget_tokens // PAGE_TOKENS
        last = -(-self.context_tokens // PAGE_TOKENS)
        chosen: dict[int, None] = {}
        for page in self.ranking(first_token):
            for candidate in (page, page + 1):
                if candidate < last and len(chosen) < limit:
                    chosen[candidate] = None
            if len(chosen) >= limit:
                break
        return torch.tensor(sorted(chosen), dtype=torch.long)

    def evidence(self, first_token: int, count: int) -> tuple[Evidence, ...]:
        """The `count` pages with most votes, best first, scores relative to the best."""
        if self.votes is None:
            return ()
        order = self.ranking(first_token)[:count]
        return tuple(
            Evidence(
                max(page * PAGE_TOKENS, first_token),
                min((page + 1) * PAGE_TOKENS, self.context_tokens),
                (self.votes[page] - self.votes[order[0]]).item(),
            )
            for page in order
        )
