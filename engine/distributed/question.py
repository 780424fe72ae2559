"""The tokens of a question on all ranks: every key is scored on the rank that has it.

Each rank scores its own pages; log-sum-exps of all of them make the scores shares. What the words
of the question vote for its pages a rank sends to rank 0, which has the ballot and tells all ranks
the pages that lead so far.
"""

from dataclasses import dataclass

import torch

from hipcli.engine.answering.vote import Ballot, head_votes
from hipcli.engine.distributed.attending import ShardStep, attend_alike
from hipcli.engine.distributed.choosing import Chooser, scoring
from hipcli.engine.distributed.group import as_bytes, from_bytes
from hipcli.engine.distributed.passes import window_starts
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.methods.selection import (
    between,
    key_scores,
    token_scores,
    voted_pages,
    with_pages,
)
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages
from hipcli.kernels.vote import MAX_TOKENS, vote

VOTES = "votes"


@dataclass(frozen=True, slots=True)
class Poll:
    """What every rank has to know of a ballot.

    Args:
        context_tokens, distance_tokens, own_words: as of a `Ballot`.
        first_page, first_token: the page of the store that has scaffold and text, if there is one,
            and where in the context the text begins.
        budget_tokens, block_size_k: as of a `QuestionPass`.
        head_weights: fp32 [num_layers, num_heads], what the vote of each head counts, or None.
        passages: how many of the first tokens are passages that vote; 0 in a first round.
    """

    context_tokens: int
    distance_tokens: int
    own_words: tuple[int, int]
    first_page: int | None
    first_token: int
    budget_tokens: int
    block_size_k: int
    head_weights: torch.Tensor | None
    passages: int


@dataclass(slots=True)
class ShardQuestion:
    """See the module.

    Args:
        method: attends and selects, or leaves the selection to the exact scores.
        chooser: knows whether it selects.
        poll: how is voted.
        ballot: the votes, on rank 0.
    """

    method: Method
    chooser: Chooser
    poll: Poll
    ballot: Ballot | None = None

    def attend(self, layer: int, q: torch.Tensor, step: ShardStep) -> torch.Tensor:
        """See `ShardAttention`."""
        page_max, lse, pages = self._scores(layer, q, step)
        self._count(layer, page_max, lse, step)
        if self.poll.passages and self.ballot is not None:
            keys = step.new_keys[: self.poll.passages].transpose(0, 1)
            scores = key_scores(q, keys, step, self.poll.distance_tokens)
            self.ballot.weigh(scores - lse.unsqueeze(-1))
        starts = window_starts(self.method, step, q.device)
        blocks, size = no_blocks(len(q), step), self.method.block_size_k
        if self.chooser.selects and self.method.geometry.window_start(step.end - 1) > 0:
            size = self.poll.block_size_k
            shares = page_max - lse.unsqueeze(-1)
            blocks = self._select(layer, q, step, shares, pages, starts)
        return attend_alike(layer, q, step, (blocks, starts), self.method, size)

    def _scores(
        self, layer: int, q: torch.Tensor, step: ShardStep
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Maxima of this rank's pages fp32 [T, num_heads, n], the log-sum-exp of all ranks' fp32
        [T, num_heads], and the pages int64 [n]."""
        store, poll = step.store, self.poll
        kv, pages, held = store.own_kv(layer, poll.context_tokens)
        page_max = torch.empty(*q.shape[:2], 0, device=q.device)
        here = torch.full(q.shape[:2], -torch.inf, device=q.device)
        if len(pages):
            store.check_keys(layer, pages)
            rope, length = step.tables.first(poll.distance_tokens + 1), store.filled(held)
            distance, scale = poll.distance_tokens, step.softmax_scale
            results = [
                vote(few, kv, length, rope, distance, scale, backend=store.backend)
                for few in q.split(MAX_TOKENS)
            ]
            page_max, here = (torch.cat(x) for x in zip(*results, strict=True))
        lse = torch.logsumexp(step.group.gather(here, VOTES), 0)
        first = poll.first_page
        if first is not None and int(store.placement.owners[first]) == store.placement.rank:
            start = first * PAGE_TOKENS + poll.first_token % PAGE_TOKENS
            tokens = range(start, min((first + 1) * PAGE_TOKENS, poll.context_tokens))
            place = len(store.placement.own(0, first))
            page_max[:, :, place] = token_scores(layer, q, step, tokens, poll.distance_tokens).amax(
                -1
            )
        return page_max, lse, pages

    def _count(
        self, layer: int, page_max: torch.Tensor, lse: torch.Tensor, step: ShardStep
    ) -> None:
        """Let the heads of one layer vote, page by page where it lies."""
        group, poll = step.group, self.poll
        total = num_pages(poll.context_tokens)
        votes = head_votes(poll.own_words, page_max, lse, total)
        if poll.head_weights is not None:
            votes.mul_(poll.head_weights[layer].unsqueeze(-1))
        summed = votes.sum(1)
        empty = summed.new_empty(0).view(torch.uint8)
        parts = [as_bytes(summed), *[empty] * (group.size - 1)]
        owned = [step.store.own_between(0, total, rank) for rank in range(group.size)]
        row_bytes = len(summed) * summed.element_size()
        sizes = [len(pages) * row_bytes if group.rank == 0 else 0 for pages in owned]
        received = group.exchange(parts, sizes, VOTES)
        if self.ballot is None:
            return
        everywhere = summed.new_empty(len(summed), total)
        for pages, raw in zip(owned, received, strict=True):
            shape = (len(summed), len(pages))
            everywhere[:, pages] = from_bytes(raw, summed.dtype, shape)
        self.ballot.add(everywhere.unsqueeze(1))

    def _leaders(self, step: ShardStep, first: int, last: int) -> torch.Tensor:
        """The pages that lead so far, int64 ascending and -1 behind them, the same on all ranks."""
        most = voted_pages(self.poll.budget_tokens)
        leaders = torch.full((most,), -1, dtype=torch.long, device=step.store.device)
        if self.ballot is not None:
            found = self.ballot.leaders(most, first, last)
            leaders[: len(found)] = found
        return step.group.broadcast(leaders, VOTES)

    def _select(
        self,
        layer: int,
        q: torch.Tensor,
        step: ShardStep,
        shares: torch.Tensor,
        pages: torch.Tensor,
        starts: torch.Tensor,
    ) -> torch.Tensor:
        """As `QuestionPass` selects, over the pages of all ranks: int32 [T, num_kv_heads, n]."""
        geometry, poll = self.method.geometry, self.poll
        scores_of = scoring(step, poll.distance_tokens)
        total = num_pages(poll.context_tokens)
        first = geometry.sink_tokens // PAGE_TOKENS
        last = min(geometry.window_start(step.start) // PAGE_TOKENS, total)
        voted = self._leaders(step, first, max(first, last))
        chosen = voted_pages(poll.budget_tokens) * PAGE_TOKENS
        num_blocks = (poll.budget_tokens - chosen) // poll.block_size_k
        shares = shares.unflatten(1, (step.store.layout.num_kv_heads, -1)).amax(2)
        shares = between(shares, geometry.sink_tokens, starts, pages)
        shares = shares.masked_fill(torch.isin(pages, voted), -torch.inf)
        candidates = scores_of.best(shares, pages, min(num_blocks, total))
        blocks = scores_of.best_blocks(layer, q, candidates, poll.block_size_k, num_blocks)
        return with_pages(blocks, voted, poll.block_size_k)
