"""What methods that attend by themselves share: rows of the pages, blocks of queries, products.

Plain PyTorch on any device. Queries are taken in blocks on a grid of positions, so that a chunk of
several blocks is attended as these blocks alone, and no memory grows as queries times keys.
"""

import torch

from hipcli.engine.forward.dense import causal_attention
from hipcli.engine.forward.step import StepInput
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, num_pages
from hipcli.kernels.cpu_common import attend_rows, causal_tail, fold_heads, unfold_heads
from hipcli.kernels.rope import rope


def query_blocks(start: int, tokens: int, size: int) -> list[tuple[int, int]]:
    """Positions [start, start + tokens) cut at multiples of `size`: (first, end) of each block."""
    end = start + tokens
    borders = [start, *range((start // size + 1) * size, end, size), end]
    return list(zip(borders[:-1], borders[1:], strict=True))


def page_rows(store: KVStore, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values of whole pages, int64 [n]: [n * 64, num_kv_heads, head_dim]."""
    found = store.pages[layer].index_select(0, pages)
    k, v = found.permute(1, 0, 3, 2, 4).flatten(1, 2)
    return k, v


def span_rows(
    store: KVStore, layer: int, start: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values of [start, end): [end - start, num_kv_heads, head_dim]."""
    first = start // PAGE_TOKENS
    found = store.pages[layer][first : num_pages(end)]
    inside = slice(start - first * PAGE_TOKENS, end - first * PAGE_TOKENS)
    k, v = found.permute(1, 0, 3, 2, 4).flatten(1, 2)
    return k[inside], v[inside]


def token_rows(
    store: KVStore, layer: int, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the keys and values of any tokens, int64 [n]: [n, num_kv_heads, head_dim]."""
    heads, head_dim = store.layout.num_kv_heads, store.layout.head_dim
    table = store.pages[layer].view(-1, head_dim)
    first = tokens // PAGE_TOKENS * (2 * heads)
    head = torch.arange(heads, device=tokens.device)
    rows = (first[:, None] + head) * PAGE_TOKENS + (tokens % PAGE_TOKENS)[:, None]
    k = table.index_select(0, rows.flatten())
    v = table.index_select(0, (rows + heads * PAGE_TOKENS).flatten())
    return k.view(-1, heads, head_dim), v.view(-1, heads, head_dim)


def rotated(x: torch.Tensor, positions: torch.Tensor, last: int, step: StepInput) -> torch.Tensor:
    """x [N, heads, head_dim] at positions int64 [N], none of them above `last`."""
    return rope(x, positions, step.tables.first(last + 1), backend=step.store.backend)


def products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q [B, rows, D] times k [B, keys, D]: [B, rows, keys], in fp32 on a GPU, else as they are."""
    if q.is_cuda and q.dtype != torch.float32:
        # Sums leave the multiprocessors unrounded.
        return torch.ops.aten.bmm.dtype(q, k.transpose(1, 2), torch.float32)
    return torch.bmm(q, k.transpose(1, 2))


def attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepInput
) -> torch.Tensor:
    """Attend the last T of n tokens causally, token i of the n at position i.

    Args:
        q: [T, num_heads, head_dim], un-rotated.
        k, v: [n, num_kv_heads, head_dim], un-rotated.
        step: the pass.

    Returns:
        [T, num_heads, head_dim].
    """
    tokens, (length, heads, _) = len(q), k.shape
    positions = torch.arange(length, device=q.device)
    k = rotated(k, positions, length, step)
    q = rotated(q, positions[length - tokens :], length, step)
    if q.is_cuda:
        return causal_attention(q, k, v, step.softmax_scale)
    tail = causal_tail(tokens, q.shape[1] // heads, q.dtype) if tokens > 1 else None
    rows = fold_heads(q * step.softmax_scale, heads)
    out, _ = attend_rows(rows, k.transpose(0, 1), v.transpose(0, 1), tail, return_lse=False)
    return unfold_heads(out, tokens)
