"""Sparse attention in plain PyTorch; decode is the same with blocks of one query."""

from __future__ import annotations

import torch

from ..paging import gather_tokens, one_head
from ..rope.reference import rotate
from ..types import PagedKV, RopeTables, SparsePlan


def packed_tokens(plan: SparsePlan, block: int, head: int, end: int) -> tuple[torch.Tensor, int]:
    """Logical tokens of one query block and KV head in packed order.

    Args:
        end: one past the last query position of the block.

    Returns:
        int64 [n] tokens, and base: how many of them precede the window.
    """
    start = int(plan.window_starts[block])
    device = plan.block_indices.device
    window = torch.arange(start, end, device=device)
    if start == 0:
        return window, 0
    chosen = plan.block_indices[block, head].long()
    chosen = chosen[chosen >= 0]
    inside = torch.arange(plan.block_size_k, device=device)
    selected = (chosen[:, None] * plan.block_size_k + inside).flatten()
    before = torch.cat((torch.arange(plan.sink_tokens, device=device), selected))
    return torch.cat((before, window)), len(before)


def sparse_prefill(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    return_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `hipcli.kernels.sparse_prefill.sparse_prefill`."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = kv.k_pages.shape[1]
    group = num_heads // num_kv_heads
    first = int(seqlen_k) - num_tokens
    out = torch.empty_like(q)
    lse = torch.empty(num_tokens, num_heads, dtype=torch.float32, device=q.device)
    for block, n0 in enumerate(range(0, num_tokens, plan.block_size_q)):
        n1 = min(n0 + plan.block_size_q, num_tokens)
        for head in range(num_kv_heads):
            tokens, base = packed_tokens(plan, block, head, first + n1)
            key_positions = torch.arange(len(tokens), device=q.device)
            query_positions = torch.arange(first + n0, first + n1, device=q.device)
            query_positions += base - int(plan.window_starts[block])
            heads = slice(head * group, (head + 1) * group)
            part = one_head(kv, head)
            keys = gather_tokens(part.k_pages, part.page_table, tokens, part.k_scales)[0]
            values = gather_tokens(part.v_pages, part.page_table, tokens, part.v_scales)[0]
            keys = rotate(keys, rope.cos[key_positions], rope.sin[key_positions])
            rows = rotate(
                q[n0:n1, heads],
                rope.cos[query_positions][:, None],
                rope.sin[query_positions][:, None],
            )
            logits = torch.einsum("tgd,kd->tgk", rows, keys) * softmax_scale
            future = key_positions > query_positions[:, None]
            logits = logits.masked_fill(future[:, None], -torch.inf)
            out[n0:n1, heads] = (logits.softmax(-1) @ values.float()).to(q.dtype)
            lse[n0:n1, heads] = logits.logsumexp(-1)
    return out, lse if return_lse else None
