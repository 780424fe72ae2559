"""The tokens of a question: with a vote of all heads, or without a look at every key."""

from dataclasses import dataclass

import torch

from hipcli.engine.answering.vote import Ballot
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method, no_blocks
from hipcli.engine.methods.selection import (
    best_blocks,
    between,
    token_scores,
    voted_pages,
    with_pages,
)
from hipcli.engine.passes.tiers import fetched
from hipcli.engine.passes.tokens import attend_tokens
from hipcli.engine.store.pages import PAGE_TOKENS, num_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.types import PagedKV
from hipcli.kernels.vote import MAX_TOKENS, vote


@dataclass(slots=True)
class QuestionPass:
    """Tokens of a question: every key is scored exactly, for the vote and maybe the selection.

    A head left to itself loses in realistic text what others find. So half of what a layer selects
    are the pages with most votes so far, its own and those of the layers below; the other half
    every token and KV head chooses by its own scores.

    Args:
        method: attends, selects, or leaves the selection to the exact scores.
        ballot: collects the votes.
        budget_tokens: tokens selected for each query and KV head.
        block_size_k: tokens of a block selected by exact scores.
    """

    method: Method
    ballot: Ballot
    budget_tokens: int
    block_size_k: int

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        page_max, lse = self._votes(layer, q, step)
        self.ballot.count(layer, page_max, lse)
        if self.ballot.asked is not None:
            passages = range(step.start, step.start + self.ballot.own_words[1])
            scores = token_scores(layer, q, step, passages, self.ballot.distance_tokens)
            self.ballot.weigh(scores - lse.unsqueeze(-1))
        if self.method.own_attention is not None:
            return self.method.own_attention.attend(layer, q, step)
        geometry, block_size_k = self.method.geometry, self.method.block_size_k
        positions = torch.arange(step.start, step.start + q.shape[0], device=q.device)
        starts = geometry.window_starts_at(positions)
        if geometry.window_start(step.start + q.shape[0] - 1) == 0:
            blocks: torch.Tensor | None = no_blocks(q.shape[0], step)
        else:
            blocks = self.method.select_question(layer, q, starts, step)
        if blocks is None:
            block_size_k = self.block_size_k
            blocks = self._select(layer, q, step, (page_max - lse.unsqueeze(-1)), starts)
        return attend_tokens(layer, q, step, (blocks, starts), geometry, block_size_k)

    def _votes(
        self, layer: int, q: torch.Tensor, step: StepInput
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Page maxima fp32 [T, num_heads, pages of the context] and their log-sum-exp."""
        store, ballot = step.store, self.ballot
        distance, context = ballot.distance_tokens, ballot.context_tokens
        store.check_keys(layer)
        if store.tiered:
            page_max, lse = _votes_by_pieces(layer, q, step, context, distance)
        else:
            page_max, lse = _vote(q, store.kv[layer], store.seqlen_k(context), step, distance)
        page_max = page_max[:, :, : num_pages(context)]
        if ballot.first_page is not None:
            # Heads with nothing to say look at the first tokens: that is no vote for the text
            # behind them.
            first = ballot.first_page
            start = first * PAGE_TOKENS + ballot.first_token % PAGE_TOKENS
            tokens = range(start, min((first + 1) * PAGE_TOKENS, context))
            page_max[:, :, first] = token_scores(layer, q, step, tokens, distance).amax(-1)
        return page_max, lse

    def _select(
        self,
        layer: int,
        q: torch.Tensor,
        step: StepInput,
        shares: torch.Tensor,
        window_starts: torch.Tensor,
    ) -> torch.Tensor:
        """Blocks between sinks and window of each token, int32 [T, num_kv_heads, n]."""
        store, distance = step.store, self.ballot.distance_tokens
        first = self.method.geometry.sink_tokens // PAGE_TOKENS
        # What is between the context and the window is the beginning of a long question.
        last = min(self.method.geometry.window_start(step.start) // PAGE_TOKENS, shares.shape[2])
        most = voted_pages(self.budget_tokens)
        voted = self.ballot.leaders(most, first, max(first, last))
        num_blocks = (self.budget_tokens - most * PAGE_TOKENS) // self.block_size_k
        shares = shares.unflatten(1, (store.layout.num_kv_heads, -1)).amax(2)
        shares = between(shares, self.method.geometry.sink_tokens, window_starts)
        shares.index_fill_(2, voted, -torch.inf)
        # The best n blocks lie in the n pages with the best blocks.
        pages = select_blocks(shares, min(num_blocks, shares.shape[2]), backend=store.backend)
        blocks = [
            best_blocks(
                q[some],
                store.kv[layer],
                pages[some],
                step.tables.first(distance + 1),
                distance,
                self.block_size_k,
                num_blocks,
                step.softmax_scale,
                backend=store.backend,
            )
            for some in fetched(step, layer, pages, count=True)
        ]
        return with_pages(torch.cat(blocks), voted, self.block_size_k)


def _vote(
    q: torch.Tensor, kv: PagedKV, seqlen_k: torch.Tensor, step: StepInput, distance: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`vote` of any number of tokens."""
    rope, backend = step.tables.first(distance + 1), step.store.backend
    results = [
        vote(few, kv, seqlen_k, rope, distance, step.softmax_scale, backend=backend)
        for few in q.split(MAX_TOKENS)
    ]
    page_max, lse = (torch.cat(x) if len(x) > 1 else x[0] for x in zip(*results, strict=True))
    return page_max, lse


def _votes_by_pieces(
    layer: int, q: torch.Tensor, step: StepInput, context: int, distance: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_vote` over the first `context` tokens, whose keys pass the device piece by piece."""
    results = []
    for first, kv in step.store.key_pieces(layer, 0, num_pages(context), values=False):
        tokens = min(context - first * PAGE_TOKENS, len(kv.page_table) * PAGE_TOKENS)
        results.append(_vote(q, kv, step.store.filled(tokens), step, distance))
    page_max, lse = zip(*results, strict=True)
    return torch.cat(page_max, -1), torch.stack(lse).logsumexp(0)


@dataclass(slots=True)
class UnvotedPass:
    """Tokens of a question without a look at every key: the time hardly grows with the context.

    Args:
        method: attends, or selects by itself.
        own_words: which of the pass's tokens are the asker's own, [start, end).
    """

    method: Method
    own_words: tuple[int, int]

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        method, blocks = self.method, None
        if method.own_attention is not None:
            return method.own_attention.attend(layer, q, step)
        positions = torch.arange(step.start, step.start + q.shape[0], device=q.device)
        starts = method.geometry.window_starts_at(positions)
        if method.geometry.window_start(step.start + q.shape[0] - 1) > 0:
            blocks = method.select_question(layer, q, starts, step)
            if blocks is None:
                blocks = method.select_unvoted(layer, q, starts, step, self.own_words)
        if blocks is None:
            blocks = no_blocks(q.shape[0], step)
        return attend_tokens(layer, q, step, (blocks, starts), method.geometry, method.block_size_k)
