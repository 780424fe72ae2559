"""Dense attention to a context of which only a piece is on the device at a time.

Each piece of keys is attended by itself; the results are merged by their log-sum-exps. So it is the
same attention, rounded otherwise.
"""

import torch

from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.plain import products
from hipcli.engine.store.pages import PAGE_TOKENS, num_pages
from hipcli.kernels.cpu_common import fold_heads, unfold_heads
from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.paging import gather_tokens
from hipcli.kernels.rope import rope
from hipcli.kernels.types import PagedKV

# Queries whose scores of a piece are in memory at once.
QUERIES = 256


def attend_by_pieces(layer: int, q: torch.Tensor, step: StepInput, start: int) -> torch.Tensor:
    """Attend queries to every key before and including their own, at true positions.

    Args:
        layer: which layer.
        q: [T, num_heads, head_dim], un-rotated.
        step: the pass; its store holds the keys of the queries.
        start: position of the first query.

    Returns:
        [T, num_heads, head_dim].
    """
    store, end = step.store, start + len(q)
    tables = step.tables.first(end)
    queries = rope(q, torch.arange(start, end, device=q.device), tables, backend=store.backend)
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.full(q.shape[:2], -torch.inf, device=q.device)
    for first_page, kv in store.key_pieces(layer, 0, num_pages(end)):
        first = first_page * PAGE_TOKENS
        keys, values = _rows(kv, min(len(kv.page_table) * PAGE_TOKENS, end - first), q.dtype)
        positions = torch.arange(first, first + len(keys), device=q.device)
        keys = rope(keys, positions, tables, backend=store.backend)
        # Queries before the piece attend nothing of it.
        for low in range(max(0, first - start), len(q), QUERIES):
            rows = slice(low, low + QUERIES)
            found = _attend(queries[rows], keys, values, (start + low, first), step.softmax_scale)
            outs = torch.stack((out[rows], found[0]))
            lses = torch.stack((lse[rows], found[1]))
            out[rows], lse[rows] = merge_partials(outs, lses, backend=store.backend)
    return out.to(q.dtype)


def _rows(kv: PagedKV, tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The first keys and values of a piece, [tokens, num_kv_heads, head_dim] each."""
    at = torch.arange(tokens, device=kv.k_pages.device)
    k = gather_tokens(kv.k_pages, kv.page_table, at, kv.k_scales)
    v = gather_tokens(kv.v_pages, kv.page_table, at, kv.v_scales)
    return k.transpose(0, 1).to(dtype).contiguous(), v.transpose(0, 1).to(dtype)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: tuple[int, int], softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out fp32 [T, num_heads, head_dim] and lse fp32 [T, num_heads] of queries and keys, rotated,
    whose first ones stand at `at`."""
    tokens, heads = len(q), k.shape[1]
    scores = products(fold_heads(q, heads), k.transpose(0, 1)).float() * softmax_scale
    queries = torch.arange(at[0], at[0] + tokens, device=q.device)
    future = torch.arange(at[1], at[1] + len(k), device=q.device) > queries[:, None]
    scores = scores.unflatten(1, (-1, tokens)).masked_fill(future, -torch.inf).flatten(1, 2)
    lse = scores.logsumexp(-1)
    out = products(scores.softmax(-1).to(v.dtype), v.permute(1, 2, 0)).float()
    return unfold_heads(out, tokens), unfold_heads(lse.unsqueeze(-1), tokens).squeeze(-1)
