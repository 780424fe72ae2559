"""Spans around the keys that heads and queries vote for, then dense attention over what was found.

Every query of a block and every query head votes for the `keys_per_query` keys it scores highest,
without positions, scale or softmax, of all keys between sinks and window. The tokens with most
votes, widened to spans, are attended by all heads of the layer, at consecutive positions between
sinks and window. The selection is made anew for every block of queries and every token of an
answer.

Source: ReAttention, first published as LongCache (arXiv 2407.15176, section 3). Its released
kernels let only the best key of 128 enter a query's choice, and score a KV head against the query
heads of others while decoding; both are errors there and right here. Where we differ: the window
begins `window_tokens` before a block of queries on the grid of pages, not before its end; where the
budget covers what lies between, attention is dense; queries vote in blocks on a grid of
`query_block_tokens`, so that reading in longer chunks is exact. A question is its own block. What
holds of the laws: all of them but one; a token of an answer votes alone, so it differs from the
same token read in a block.
Cost: every key, for each query and head: half of dense attention's products.
"""

from dataclasses import dataclass, field

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Own
from hipcli.engine.methods.configs import ReAttentionConfig
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.methods.plain import (
    attend_packed,
    products,
    query_blocks,
    span_rows,
    token_rows,
)
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from hipcli.kernels.cpu_common import fold_heads

# Scores held at once, of all queries and heads of a block.
MAX_SCORES = 1 << 26
# Keys whose maximum is looked at before they are.
GROUP_TOKENS = 64


def best_keys(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` highest of each row, exactly: values and places.

    They lie in the `count` groups with the highest maxima, and a maximum is cheaper than a search.

    Args:
        scores: [..., n], n a multiple of GROUP_TOKENS.
        count: at most n.
    """
    groups = scores.unflatten(-1, (-1, GROUP_TOKENS))
    if groups.shape[-2] <= count:
        best = scores.topk(count)
        return best.values, best.indices
    first = groups.amax(-1).topk(count).indices
    inside = groups.gather(-2, first.unsqueeze(-1).expand(*first.shape, GROUP_TOKENS))
    best = inside.flatten(-2).topk(count)
    group = first.gather(-1, best.indices // GROUP_TOKENS)
    return best.values, group * GROUP_TOKENS + best.indices % GROUP_TOKENS


def voted_keys(
    store: KVStore, layer: int, q: torch.Tensor, start: int, end: int, count: int
) -> torch.Tensor:
    """The keys that each query and head scores highest among tokens [start, end).

    Args:
        store: holds the keys; start and end are borders of pages.
        layer: which layer.
        q: [T, num_heads, head_dim], un-rotated.
        start, end: positions.
        count: keys for each query and head, fewer where there are fewer.

    Returns:
        int64 [num_kv_heads, rows, at most count], positions.
    """
    heads = store.layout.num_kv_heads
    rows = fold_heads(q, heads)
    tile = MAX_SCORES // (q.shape[0] * q.shape[1]) // PAGE_TOKENS * PAGE_TOKENS
    tile = max(tile, PAGE_TOKENS)
    values = products(rows, rows[:, :0])
    places = torch.empty((*rows.shape[:2], 0), dtype=torch.int64, device=q.device)
    for first in range(start, end, tile):
        last = min(first + tile, end)
        pages = store.pages[layer][first // PAGE_TOKENS : last // PAGE_TOKENS, 0]
        keys = pages.transpose(0, 1).flatten(1, 2)
        found, where = best_keys(products(rows, keys), min(count, last - first))
        values = torch.cat((values, found), -1)
        places = torch.cat((places, where + first), -1)
        best = values.topk(min(count, values.shape[-1]))
        values, places = best.values, places.gather(-1, best.indices)
    return places


def spans(
    votes: torch.Tensor, start: int, end: int, num_spans: int, span_tokens: int
) -> torch.Tensor:
    """The tokens around those with most votes.

    Args:
        votes: int64 of any shape, positions in [start, end), one for each vote.
        start, end: spans do not leave them.
        num_spans: at most so many tokens are widened; of equal ones the earlier.
        span_tokens: length of a span.

    Returns:
        int64 [n] positions, ascending, each once.
    """
    counts = torch.bincount(votes.flatten() - start, minlength=end - start)
    order = counts.sort(descending=True, stable=True).indices[:num_spans]
    centres = order[counts[order] > 0] + start
    around = torch.arange(-(span_tokens // 2), span_tokens // 2, device=votes.device)
    return (centres[:, None] + around).clamp(start, end - 1).unique()


@dataclass(slots=True)
class ReAttention:
    """The attention of every pass; it keeps nothing.

    Args:
        config: settings.
        geometry: sinks, window and dense length.
    """

    config: ReAttentionConfig
    geometry: Geometry
    keeps_state: bool = False
    # Per layer what the last block of queries selected, and where its window began.
    _last: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)

    def resume(self, store: KVStore, tensors: dict[str, torch.Tensor]) -> None:
        """There is nothing to resume."""

    def attended(self, layer: int, store: KVStore, position: int) -> torch.Tensor:
        """See `OwnAttention.attended`."""
        tokens, window_start = self._last[layer]
        near = torch.arange(window_start, position + 1, device=store.device)
        sinks = min(window_start, self.config.sink_tokens)
        return torch.cat((torch.arange(sinks, device=store.device), tokens, near))

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """See `LayerAttention.attend`."""
        blocks = query_blocks(step.start, len(q), self.config.query_block_tokens)
        outs = [
            self._attend_block(layer, q[first - step.start : end - step.start], step, first)
            for first, end in blocks
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def select(self, layer: int, q: torch.Tensor, step: StepInput, end: int) -> torch.Tensor:
        """Tokens between sinks and the window that begins at `end`, int64 ascending."""
        config = self.config
        step.store.check_keys(layer)
        votes = voted_keys(step.store, layer, q, config.sink_tokens, end, config.keys_per_query)
        num_spans = config.budget_tokens // config.span_tokens
        return spans(votes, config.sink_tokens, end, num_spans, config.span_tokens)

    def _attend_block(
        self, layer: int, q: torch.Tensor, step: StepInput, first: int
    ) -> torch.Tensor:
        """Queries from position `first` on, which share a selection."""
        store, sinks = step.store, self.config.sink_tokens
        window_start, end = self.geometry.window_start(first), first + len(q)
        k, v = span_rows(store, layer, window_start, end)
        pages, tokens = None, torch.empty(0, dtype=torch.int64, device=q.device)
        if window_start > 0:
            tokens = self.select(layer, q, step, window_start)
            parts = (span_rows(store, layer, 0, sinks), token_rows(store, layer, tokens), (k, v))
            k, v = (torch.cat(rows) for rows in zip(*parts, strict=True))
            pages = tokens // PAGE_TOKENS
        self._last[layer] = (tokens, window_start)
        store.check_attended(layer, pages, PAGE_TOKENS, sinks, window_start)
        return attend_packed(q, k, v, step)


@dataclass(slots=True)
class ReAttentionMethod(Own):
    """See the module."""

    config: ReAttentionConfig = field(default_factory=ReAttentionConfig)
    name: str = "reattention"
    own_attention: ReAttention = field(init=False)

    def __post_init__(self) -> None:
        self.own_attention = ReAttention(self.config, self.geometry)

    @property
    def geometry(self) -> Geometry:
        config = self.config
        return Geometry.covered(config.sink_tokens, config.window_tokens, config.budget_tokens)
