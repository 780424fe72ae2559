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

    Attributes:
        votes: fp32 [num_pages], log-sum-exp over the heads so far; None before the first layer.
    """

    context_tokens: int
    distance_tokens: int
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
        log_share = torch.log_softmax(page_maxima, dim=1)
        per_head = log_share.view(num_kv_heads, -1, group, tokens).amax(3)
        layer_votes = per_head.permute(1, 0, 2).reshape(per_head.shape[1], -1).logsumexp(1)
        self.votes = layer_votes if self.votes is None else torch.logaddexp(self.votes, layer_votes)
        return maxima.view(num_kv_heads, -1, group, tokens)

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
