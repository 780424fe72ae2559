"""The attention of one shard in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import gather_tokens, one_head
from ..rope.reference import rotate
from ..sparse_prefill.reference import packed_tokens
from ..types import PagedKV, RopeTables, SparsePlan


def shard_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.shard_attention.shard_attention`."""
    num_tokens, num_heads, _ = q.shape
    num_kv_heads, page_size = kv.k_pages.shape[1:3]
    group = num_heads // num_kv_heads
    first = int(seqlen_k) - num_tokens
    out = torch.zeros_like(q)
    lse = torch.full((num_tokens, num_heads), -torch.inf, device=q.device)
    for block, n0 in enumerate(range(0, num_tokens, plan.block_size_q)):
        n1 = min(n0 + plan.block_size_q, num_tokens)
        for head in range(num_kv_heads):
            tokens, base = packed_tokens(plan, block, head, first + n1)
            # A key's position is its place in the whole list, here or not.
            part = one_head(kv, head)
            here = (part.page_table.flatten()[tokens // page_size] >= 0).nonzero().flatten()
            query_positions = torch.arange(first + n0, first + n1, device=q.device)
            query_positions += base - int(plan.window_starts[block])
            heads = slice(head * group, (head + 1) * group)
            keys = gather_tokens(part.k_pages, part.page_table, tokens[here])[0]
            values = gather_tokens(part.v_pages, part.page_table, tokens[here])[0]
            keys = rotate(keys, rope.cos[here], rope.sin[here])
            rows = rotate(
                q[n0:n1, heads],
                rope.cos[query_positions][:, None],
                rope.sin[query_positions][:, None],
            )
            logits = torch.einsum("tgd,kd->tgk", rows, keys) * softmax_scale
            logits = logits.masked_fill((here > query_positions[:, None])[:, None], -torch.inf)
            lse[n0:n1, heads] = logits.logsumexp(-1)
            weights = (logits - lse[n0:n1, heads, None]).exp().nan_to_num(0.0)
            out[n0:n1, heads] = (weights @ values.float()).to(q.dtype)
    return out, lse
