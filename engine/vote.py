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
from dataclasses import dataclass

import torch

from hipcli.engine.events import Evidence
from hipcli.engine.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.sparse_prefill.cpu_impl import fold_heads, rotate_
from hipcli.kernels.vote.cpu_impl import block_maxima


@dataclass(slots=True)
class Ballot:
    """Votes for the pages of a context.

    Args:
        context_tokens: tokens that can be voted for, from position 0.
        distance_tokens: distance between query and keys while scoring.
        own_words: which tokens of the pass are the asker's own words, [start, end).

    Attributes:
        votes: fp32 [num_pages], sum over heads and tokens so far; None before the first layer.
    """

    context_tokens: int
    distance_tokens: int
    own_words: tuple[int, int]
    votes: torch.Tensor | None = None

    def count(
        self, layer: int, q: torch.Tensor, step: StepInput, block_size_k: int
    ) -> torch.Tensor:
        """Let the heads of one layer vote.

        Args:
            layer: which layer.
            q: [T, num_heads, head_dim] of the question's tokens, un-rotated.
            step: the pass.
            block_size_k: tokens of the blocks whose maxima are returned; divides the page size.

        Returns:
            fp32 [num_kv_heads, num_blocks, group, T]: maximum scores of blocks, the last one
            possibly shorter than the others.
        """
        store = step.store
        num_kv_heads = store.layout.num_kv_heads
        tokens, num_heads, _ = q.shape
        rows = fold_heads(q, num_kv_heads) * step.softmax_scale
        cos, sin = step.tables.rows(self.distance_tokens, self.distance_tokens + 1)
        rotate_(rows, cos, sin)
        full = self.context_tokens // PAGE_TOKENS
        maxima = block_maxima(rows, store.pages[layer], 0, full, block_size_k)
        page_maxima = maxima.unflatten(1, (full, PAGE_TOKENS // block_size_k)).amax(2)
        rest = self.context_tokens % PAGE_TOKENS
        if rest:
            keys = store.pages[layer][full, 0, :, :rest]
            tail = torch.bmm(keys, rows.transpose(1, 2)).float()
            per_block = [part.amax(1, keepdim=True) for part in tail.split(block_size_k, 1)]
            maxima = torch.cat((maxima, *per_block), 1)
            page_maxima = torch.cat((page_maxima, tail.amax(1, keepdim=True)), 1)
        group = num_heads // num_kv_heads
        self._add(page_maxima.unflatten(2, (group, tokens)))
        return maxima.view(num_kv_heads, -1, group, tokens)

    def _add(self, page_maxima: torch.Tensor) -> None:
        """Add a layer's votes, from fp32 [num_kv_heads, num_pages, group, T]."""
        log_share = torch.log_softmax(page_maxima, dim=1)
        start, end = self.own_words
        words = log_share[..., start:end]
        scaffold = torch.cat((log_share[..., :start], log_share[..., end:]), dim=-1)
        # An even share of the context counts as common too: it keeps the logarithm tame.
        common = torch.full_like(words[..., :1], 1.0 / words.shape[1])
        if scaffold.shape[-1]:
            common += scaffold.amax(-1, keepdim=True).exp()
        votes = (words - common.log()).clamp_(min=0).mul_(words.exp()).sum(dim=(0, 2, 3))
        self.votes = votes if self.votes is None else self.votes + votes

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
        votes = self.votes.tolist()
        order = [page for page in order if votes[page] > 0]
        return tuple(
            Evidence(
                max(page * PAGE_TOKENS, first_token),
                min((page + 1) * PAGE_TOKENS, self.context_tokens),
                math.log(votes[page] / votes[order[0]]),
            )
            for page in order
        )
