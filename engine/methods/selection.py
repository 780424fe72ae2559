"""Selecting for queries one by one: every query head judges by itself, then the group is joined.

Heads of one group score on different scales. So each head's scores become shares of its own
attention (log-softmax) before the largest share of the group counts. The kernels take the maximum
over a group's raw scores; here each head is handed to them as a query of its own.
"""

from dataclasses import replace

import torch

from hipcli.engine.forward.step import Step
from hipcli.engine.store.pages import PAGE_TOKENS
from hipcli.kernels.paging import gather_tokens
from hipcli.kernels.rope import rope as rotate
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.types import PagedKV, PageIndex, RopeTables

# Sorts behind every block.
NO_BLOCK = 2**31 - 1


def voted_pages(budget_tokens: int) -> int:
    """How many pages of a selection are the voted ones: half of it."""
    return budget_tokens // 2 // PAGE_TOKENS


def with_pages(blocks: torch.Tensor, pages: torch.Tensor, block_size_k: int) -> torch.Tensor:
    """Selections and the same pages for all of them, in one list each.

    Args:
        blocks: int32 [N, num_kv_heads, n] in units of `block_size_k`, -1 for the unused tail; none
            of them in `pages`.
        pages: int64 [m], -1 for none.
        block_size_k: tokens of a block, a part of a page.

    Returns:
        int32 [N, num_kv_heads, n + m * blocks of a page], ascending, -1 for the unused tail.
    """
    parts = PAGE_TOKENS // block_size_k
    given = (pages[:, None] * parts + torch.arange(parts, device=pages.device)).flatten().int()
    joined = torch.cat((blocks, given.expand(*blocks.shape[:2], -1)), dim=2)
    ordered = joined.masked_fill(joined < 0, NO_BLOCK).sort().values
    return ordered.masked_fill(ordered == NO_BLOCK, -1)


def head_queries(q: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[N, num_heads, head_dim] -> [N * group, num_kv_heads, head_dim]: one query a head."""
    return q.unflatten(1, (num_kv_heads, -1)).transpose(1, 2).flatten(0, 1)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """Every row of x `times` times in a row."""
    return x.unsqueeze(1).expand(-1, times, *x.shape[1:]).flatten(0, 1).contiguous()


def within_reach(
    index: PageIndex, window_starts: torch.Tensor, backend: str, reach_tokens: int
) -> tuple[PageIndex, int]:
    """The summaries of pages that can be chosen: before the last window, as far as a reach.

    A store has room for the whole context from the first chunk on. For a GPU nothing is left out:
    to ask how far the windows reach would wait for it, and its kernels want all summaries.

    Returns:
        The index, and the page its first summary is of.
    """
    if backend != "cpu":
        return index, 0
    first = max(int(window_starts.min()) - reach_tokens, 0) // index.page_size
    last = int(window_starts.max()) // index.page_size
    scales = None if index.scales is None else index.scales[:, first:last]
    return replace(index, summaries=index.summaries[:, first:last], scales=scales), first


def only_from(
    scores: torch.Tensor, starts: torch.Tensor, pages: torch.Tensor | None = None
) -> torch.Tensor:
    """Scores [N, num_kv_heads, n] with -inf for pages that begin before `starts`, integers [N].

    `pages` int64 [n] tells which they are; None for all from the first on.
    """
    page = torch.arange(scores.shape[-1], device=scores.device) if pages is None else pages
    before = page * PAGE_TOKENS < starts[:, None]
    return scores.masked_fill(before[:, None], -torch.inf)


def group_shares(scores: torch.Tensor, group: int, softmax_scale: float) -> torch.Tensor:
    """Largest log-share that any head of a group gives each candidate.

    Args:
        scores: fp32 [N * group, num_kv_heads, n] of `head_queries`, -inf where there is none.
        group: query heads a KV head.
        softmax_scale: factor of the scores.

    Returns:
        fp32 [N, num_kv_heads, n]; -inf or NaN where there is no candidate.
    """
    shares = torch.log_softmax(scores * softmax_scale, dim=-1)
    return shares.unflatten(0, (-1, group)).amax(1)


def best_pages(
    q: torch.Tensor,
    index: PageIndex,
    window_starts: torch.Tensor,
    rope: RopeTables,
    distance_tokens: int,
    sink_tokens: int,
    num_pages: int,
    softmax_scale: float,
    *,
    backend: str,
) -> torch.Tensor:
    """Pages with the highest bounds between sinks and window, for each query.

    Args:
        q: [N, num_heads, head_dim], un-rotated.
        index: bounds of all full pages.
        window_starts: int32 [N].
        rope: tables of more than `distance_tokens` rows.
        distance_tokens: distance between query and keys while scoring.
        sink_tokens: never selected.
        num_pages: most pages of a query and KV head.
        softmax_scale: factor of q.k.
        backend: of the kernels.

    Returns:
        int32 [N, num_kv_heads, num_pages], ascending, -1 for the unused tail.
    """
    num_kv_heads = index.summaries.shape[0]
    group = q.shape[1] // num_kv_heads
    scores = score_pages(
        head_queries(q, num_kv_heads),
        index,
        repeated(window_starts, group),
        rope,
        distance_tokens,
        1,
        1,
        sink_tokens,
        backend=backend,
    )
    return select_blocks(group_shares(scores, group, softmax_scale), num_pages, backend=backend)


def shared_pages(
    q: torch.Tensor,
    index: PageIndex,
    window_start: int,
    rope: RopeTables,
    distance_tokens: int,
    sink_tokens: int,
    num_pages: int,
    softmax_scale: float,
    *,
    backend: str,
) -> torch.Tensor:
    """Pages between sinks and window in which any of the queries takes most interest.

    Args:
        q: [N, num_heads, head_dim], un-rotated; each head judges by itself, as in `best_pages`.
        window_start: first token that is no candidate.

    Returns:
        int32 [1, num_kv_heads, num_pages], ascending, -1 for the unused tail.
    """
    num_kv_heads = index.summaries.shape[0]
    queries = head_queries(q, num_kv_heads)
    starts = torch.full((len(queries),), window_start, dtype=torch.int32, device=q.device)
    last = window_start // PAGE_TOKENS
    scores = score_pages(
        queries, index, starts, rope, distance_tokens, 1, 1, sink_tokens, backend=backend
    )[:, :, :last]
    # Only the largest share counts: log-sum-exps of rows, no softmax of all of them.
    scores = scores * softmax_scale
    shares = scores - torch.logsumexp(scores, -1, keepdim=True)
    best = shares.amax(0, keepdim=True)
    return select_blocks(best, min(num_pages, best.shape[2]), backend=backend)


def best_blocks(
    q: torch.Tensor,
    kv: PagedKV,
    pages: torch.Tensor,
    rope: RopeTables,
    distance_tokens: int,
    block_size_k: int,
    num_blocks: int,
    softmax_scale: float,
    *,
    backend: str,
) -> torch.Tensor:
    """Blocks with the highest exact scores inside candidate pages, for each query.

    Args:
        q: [N, num_heads, head_dim], un-rotated.
        kv: pages of keys.
        pages: int32 [N, num_kv_heads, c], ascending, -1 for the unused tail; all of them full.
        rope: tables of more than `distance_tokens` rows.
        distance_tokens: distance between query and keys while scoring.
        block_size_k: tokens of a block.
        num_blocks: most blocks of a query and KV head.
        softmax_scale: factor of q.k.
        backend: of the kernels.

    Returns:
        int32 [N, num_kv_heads, num_blocks], ascending, -1 for the unused tail.
    """
    num_kv_heads = kv.k_pages.shape[1]
    group = q.shape[1] // num_kv_heads
    scores = score_blocks(
        head_queries(q, num_kv_heads),
        kv,
        repeated(pages, group),
        rope,
        distance_tokens,
        1,
        block_size_k,
        1,
        backend=backend,
    )
    shares = group_shares(scores, group, softmax_scale)
    return select_blocks(shares, num_blocks, pages, backend=backend)


def between(
    scores: torch.Tensor,
    sink_tokens: int,
    window_starts: torch.Tensor,
    pages: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores [N, num_kv_heads, num_pages] with -inf for pages outside [sinks, window start).

    `pages` int64 [num_pages] tells which they are; None for all from the first on.
    """
    page = torch.arange(scores.shape[-1], device=scores.device) if pages is None else pages
    inside = (page >= sink_tokens // PAGE_TOKENS) & (page < window_starts[:, None] // PAGE_TOKENS)
    return scores.masked_fill(~inside[:, None], -torch.inf)


def token_scores(
    layer: int, q: torch.Tensor, step: Step, tokens: range, distance_tokens: int
) -> torch.Tensor:
    """Scores of a few tokens one by one.

    Args:
        q: [N, num_heads, head_dim], un-rotated.
        tokens: of the store.
        distance_tokens: distance between query and keys while scoring.

    Returns:
        fp32 [N, num_heads, len(tokens)].
    """
    kv, heads = step.store.kv[layer], step.store.layout.num_kv_heads
    if step.store.tiered:
        first, last = tokens.start // PAGE_TOKENS, -(-tokens.stop // PAGE_TOKENS)
        pages = torch.arange(first, last, dtype=torch.int32, device=q.device)
        step.store.fetch(layer, pages.expand(heads, -1))
    at = torch.arange(tokens.start, tokens.stop, device=q.device)
    keys = gather_tokens(kv.k_pages, kv.page_table, at, kv.k_scales)
    return key_scores(q, keys, step, distance_tokens)


def key_scores(
    q: torch.Tensor, keys: torch.Tensor, step: Step, distance_tokens: int
) -> torch.Tensor:
    """`token_scores` of keys [num_kv_heads, n, head_dim], un-rotated."""
    keys = keys.float()
    positions = torch.full((len(q),), distance_tokens, device=q.device)
    tables = step.tables.first(distance_tokens + 1)
    rows = rotate(q, positions, tables, backend=step.store.backend).float()
    rows = rows.unflatten(1, (keys.shape[0], -1))
    scores = torch.einsum("nhgd,hkd->nhgk", rows, keys) * step.softmax_scale
    return scores.flatten(1, 2)
