"""Which blocks the methods that run on several ranks select, over the pages of all of them.

The selections of `hip` as its own module states them, each from scores of own pages and an
exchange; `dense` and `window` select nothing.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.distributed.attending import ShardStep
from hipcli.engine.distributed.selecting import Scoring
from hipcli.engine.methods.base import Method, Schedule
from hipcli.engine.methods.configs import EVERYTHING
from hipcli.engine.methods.hip import LAST_TOKENS, QUESTION_PAGES
from hipcli.engine.methods.selection import only_from
from hipcli.engine.store.layout import PAGE_TOKENS


@dataclass(slots=True)
class _Kept:
    """What a layer selected last for an answer."""

    schedule: Schedule
    pages: torch.Tensor | None = None
    blocks: torch.Tensor | None = None


@dataclass(slots=True)
class Chooser:
    """Selects for one pass; a new one for every answer.

    Args:
        method: whose settings count.
    """

    method: Method
    _kept: dict[int, _Kept] = field(default_factory=dict)

    @property
    def selects(self) -> bool:
        """False for a method without a selection."""
        return self.method.token_blocks > 0

    def _scoring(self, step: ShardStep) -> Scoring:
        distance = self.method.config.query_distance_tokens
        return scoring(step, distance)

    def for_chunk(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        windows: tuple[int, int],
        step: ShardStep,
    ) -> torch.Tensor | None:
        """`Method.select_prefill`; q are the queries of all ranks, `windows` the first and the last
        window start."""
        if not self.selects:
            return None
        config, scores_of = self.method.config, self._scoring(step)
        sizes = (PAGE_TOKENS, min(config.query_stride, PAGE_TOKENS))
        first, reach = config.sink_tokens, config.prefill_reach_tokens
        if reach < EVERYTHING:
            first = max(first, windows[0] - reach)
        scores, pages = scores_of.pages(layer, q, window_starts, (first, windows[1]), sizes)
        if reach < EVERYTHING:
            scores = only_from(scores, window_starts - reach, pages)
        return scores_of.best(scores, pages, config.prefill_budget_tokens // PAGE_TOKENS)

    def for_token(
        self, layer: int, q: torch.Tensor, window_starts: torch.Tensor, step: ShardStep
    ) -> torch.Tensor | None:
        """`Method.select_token` of one token; q [1, num_heads, head_dim]."""
        if not self.selects:
            return None
        kept = self._kept.setdefault(layer, _Kept(self.method.schedule()))
        end = self.method.geometry.window_start(step.start)
        what = kept.schedule.next(step.start, end)
        scores_of, method = self._scoring(step), self.method
        if what == "pages":
            between = (method.config.sink_tokens, end)
            shares, pages = scores_of.page_shares(layer, q, window_starts, between)
            group = q.shape[1] // step.store.layout.num_kv_heads
            best = shares.unflatten(0, (-1, group)).amax(1)
            kept.pages = scores_of.best(best, pages, method.token_pages)
        if what != "keep" and kept.pages is not None:
            size, count = method.block_size_k, method.token_blocks
            kept.blocks = scores_of.best_blocks(layer, q, kept.pages, size, count)
        return kept.blocks

    def unvoted(
        self,
        layer: int,
        q: torch.Tensor,
        window_starts: torch.Tensor,
        step: ShardStep,
        words: tuple[int, int],
    ) -> torch.Tensor | None:
        """`Method.select_unvoted`."""
        if not self.selects:
            return None
        method, config, scores_of = self.method, self.method.config, self._scoring(step)
        voices = torch.cat((q[slice(*words)], q[max(words[1], len(q) - LAST_TOKENS) :]))
        end = method.geometry.window_start(step.end - 1)
        starts = step.store.filled(end).expand(len(voices)).contiguous()
        shares, pages = scores_of.page_shares(layer, voices, starts, (config.sink_tokens, end))
        least = config.budget_tokens // PAGE_TOKENS
        count = max(min(QUESTION_PAGES, method.token_pages), least)
        best = shares.amax(0, keepdim=True)
        chosen = scores_of.best(best, pages, min(count, end // PAGE_TOKENS))
        size = method.block_size_k
        num_blocks = min(method.token_blocks, chosen.shape[2] * PAGE_TOKENS // size)
        given = chosen.expand(len(q), -1, -1).contiguous()
        blocks = scores_of.best_blocks(layer, q, given, size, num_blocks)
        inside = blocks * size < window_starts[:, None, None]
        return blocks.masked_fill(~inside, -1)


def scoring(step: ShardStep, distance_tokens: int) -> Scoring:
    """Scores of a pass, queries standing so far from the keys."""
    rope = step.tables.first(distance_tokens + 1)
    return Scoring(step.group, step.store, rope, distance_tokens, step.softmax_scale)
