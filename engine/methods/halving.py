"""One stage of hierarchical pruning: a representative of each chunk by halving, then the best.

Plain PyTorch on any device; a group of query blocks at a time, so that memory stays bounded.
Source: InfiniteHiP (arXiv 2502.08910, section 3.1 and algorithm 3).
"""

from dataclasses import dataclass

import torch

from hipcli.engine.forward.step import Step
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.cpu_common import rotate_
from hipcli.kernels.rope import rope

# Channels of gathered keys that one probe may hold at once.
MAX_GATHERED = 1 << 26


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage does.

    Args:
        chunk_tokens: tokens of a chunk, a power of two.
        kept_chunks: how many chunks of a query block go on.
        query_stride: neighbouring queries that are averaged.
        by_index: chunks stand at 0, 1, 2, ... while they are scored, instead of all at one place.
        middle_probes: see `HipPaperConfig`.
    """

    chunk_tokens: int
    kept_chunks: int
    query_stride: int
    by_index: bool
    middle_probes: bool

    def split(self, starts: torch.Tensor, chunk_tokens: int) -> torch.Tensor:
        """Starts [N, c] of chunks of `chunk_tokens` as those of this stage's: [N, c * parts]."""
        offsets = torch.arange(0, chunk_tokens, self.chunk_tokens, device=starts.device)
        parts = starts.unsqueeze(-1) + offsets
        return parts.masked_fill(starts.unsqueeze(-1) < 0, -1).flatten(1)


@dataclass(frozen=True, slots=True)
class _Search:
    """Everything that the probes of some query blocks need.

    Args:
        left, right: [N, num_heads, rows, head_dim], queries turned for either half's key.
        table: [rows, head_dim], the layer's pages as rows, one a token and head.
        step: the pass.
        by_index: the key of chunk n stands at n.
    """

    left: torch.Tensor
    right: torch.Tensor
    table: torch.Tensor
    step: Step
    by_index: bool

    def scores(self, q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Best product of any row with each token's key.

        Args:
            q: `left` or `right`.
            tokens: int64 [N, num_heads, c].

        Returns:
            fp32 [N, num_heads, c].
        """
        blocks, num_heads, count = tokens.shape
        heads = self.step.store.layout.num_kv_heads
        kv_head = torch.arange(num_heads, device=q.device) // (num_heads // heads)
        page = tokens // PAGE_TOKENS * (2 * heads)
        rows = (page + kv_head[:, None]) * PAGE_TOKENS + tokens % PAGE_TOKENS
        keys = self.table.index_select(0, rows.flatten()).view(blocks * num_heads, count, -1)
        if self.by_index:
            rotate_(keys, *self.step.tables.rows(0, count))
        found = torch.bmm(q.flatten(0, 1), keys.transpose(1, 2)).amax(1).float()
        return found.view(tokens.shape)


def best_chunks(
    layer: int,
    q: torch.Tensor,
    starts: torch.Tensor,
    window_starts: torch.Tensor,
    window_tokens: int,
    stage: Stage,
    step: Step,
) -> torch.Tensor:
    """The chunks of each query block that some head likes best.

    Args:
        layer: index of the layer.
        q: [N, rows, num_heads, head_dim], un-rotated.
        starts: int64 [N, c], first tokens of candidate chunks, ascending, -1 for none.
        window_starts: int32 [N]; a chunk ends there at the latest.
        window_tokens: of the method.
        stage: what to do.
        step: the pass.

    Returns:
        int64 [N, min(c, kept_chunks)], ascending, -1 for the unused tail.
    """
    if starts.shape[1] <= stage.kept_chunks:
        return _sorted(starts)
    per_block = starts.shape[1] * q.shape[2] * q.shape[3]
    group = max(1, MAX_GATHERED // per_block)
    parts = [
        _best_of_group(layer, *rows, window_tokens, stage, step)
        for rows in zip(
            q.split(group), starts.split(group), window_starts.split(group), strict=True
        )
    ]
    return torch.cat(parts)


def _best_of_group(
    layer: int,
    q: torch.Tensor,
    starts: torch.Tensor,
    window_starts: torch.Tensor,
    window_tokens: int,
    stage: Stage,
    step: Step,
) -> torch.Tensor:
    """`best_chunks` of query blocks few enough to be scored together."""
    pooled = _pooled(q, stage.query_stride)
    valid = starts >= 0
    first = starts.clamp(min=0)
    end = (first + stage.chunk_tokens).minimum(window_starts[:, None].long())
    end = torch.where(valid, end, first + 1)
    num_heads = q.shape[2]
    low = first.unsqueeze(1).expand(-1, num_heads, -1)
    high = end.unsqueeze(1).expand(-1, num_heads, -1)
    step.store.check_keys(layer, first // PAGE_TOKENS)
    search = _searcher(layer, pooled, valid, window_tokens, stage, step)
    size = stage.chunk_tokens
    halve = _by_middles if stage.middle_probes else _by_firsts
    scores = halve(search, low, high, size)
    best = scores.amax(1).masked_fill(~valid, -torch.inf)
    chosen = best.topk(stage.kept_chunks, -1).indices
    return _sorted(starts.gather(1, chosen))


def _pooled(q: torch.Tensor, stride: int) -> torch.Tensor:
    """Means of runs of queries, [N, rows, H, D] -> [N, H, ceil(rows / stride), D]."""
    runs = [run.float().mean(1) for run in q.split(stride, 1)] if stride > 1 else None
    rows = q if runs is None else torch.stack(runs, 1).to(q.dtype)
    return rows.transpose(1, 2)


def _searcher(
    layer: int,
    pooled: torch.Tensor,
    valid: torch.Tensor,
    window_tokens: int,
    stage: Stage,
    step: Step,
) -> _Search:
    """Queries turned to where they stand while a stage scores."""
    table = step.store.pages[layer].view(-1, step.store.layout.head_dim)
    if not stage.by_index:
        # The left half's key stands at 0, the right half's at 1, the query beyond the window.
        left = _turned(pooled, window_tokens + 1, step)
        return _Search(left, _turned(pooled, window_tokens, step), table, step, by_index=False)
    counts = valid.sum(1)
    turned = [
        _turned(rows[None], int(count) + window_tokens, step)
        for rows, count in zip(pooled, counts, strict=True)
    ]
    queries = torch.cat(turned)
    return _Search(queries, queries, table, step, by_index=True)


def _turned(x: torch.Tensor, position: int, step: Step) -> torch.Tensor:
    """x [N, H, rows, D] rotated to one position."""
    flat = x.transpose(1, 2).flatten(0, 1)
    positions = torch.full((len(flat),), position, device=x.device)
    out = rope(flat, positions, step.tables.first(position + 1), backend=step.store.backend)
    return out.unflatten(0, (len(x), -1)).transpose(1, 2).contiguous()


def _by_middles(search: _Search, low: torch.Tensor, high: torch.Tensor, size: int) -> torch.Tensor:
    """Halving by the middle key of each half: the best score met. Intervals [low, high)."""
    best = torch.full(low.shape, -torch.inf, device=low.device)
    while size >= 1:
        size //= 2
        middle = (low + high) // 2
        left = search.scores(search.left, (low + middle) // 2)
        right = search.scores(search.right, (middle + high) // 2)
        go_left = left > right
        low, high = torch.where(go_left, low, middle), torch.where(go_left, middle, high)
        best = best.maximum(left.maximum(right))
    return best


def _by_firsts(search: _Search, low: torch.Tensor, high: torch.Tensor, size: int) -> torch.Tensor:
    """Halving by the first key of each half: the score of the key that is left."""
    while size > 1:
        size //= 2
        middle = ((low + high) // 2).maximum(low)
        left = search.scores(search.left, low)
        right = search.scores(search.right, middle.minimum(high - 1))
        go_left = left > right
        low, high = torch.where(go_left, low, middle), torch.where(go_left, middle, high)
    return search.scores(search.right, low)


def _sorted(starts: torch.Tensor) -> torch.Tensor:
    """Ascending, with -1 at the end."""
    none = torch.iinfo(starts.dtype).max
    found = starts.masked_fill(starts < 0, none).sort(-1).values
    return found.masked_fill(found == none, -1)
