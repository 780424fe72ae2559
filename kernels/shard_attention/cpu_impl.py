"""The attention of one shard on a CPU: batched matrix products over the blocks that lie here.

The KV heads of a query block have different numbers of blocks here, so the rows of blocks are
filled up to the longest one, and what fills them is masked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..cpu_common import fold_heads, key_blocks, rotate_, unfold_heads
from ..types import PagedKV, RopeTables, SparsePlan

# Neighbouring query blocks with the same plan are attended together up to this many queries.
MAX_SPAN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of keys that lie here.

    Args:
        indices: int64 [num_kv_heads, n], in units of the plan's block_size_k.
        positions: int64 [num_kv_heads, n], packed position of the first key of each; beyond every
            query for what only fills the row.
        bases: int64 [num_kv_heads], packed position at which the window begins.
    """

    indices: torch.Tensor
    positions: torch.Tensor
    bases: torch.Tensor


def shard_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.shard_attention.shard_attention`."""
    out = torch.zeros(q.shape, dtype=q.dtype)
    lse = torch.full(q.shape[:2], -torch.inf)
    first = int(seqlen_k) - q.shape[0]
    here = replace(kv, page_table=kv.page_table.clamp(min=0))
    for block, low, high in _spans(plan, q.shape[0]):
        blocks = _blocks_here(plan, block, first + high, kv.page_table, kv.k_pages.shape[2])
        if not blocks.indices.shape[1]:
            continue
        keys, values = key_blocks(here, blocks.indices, plan.block_size_k, q.dtype)
        inside = torch.arange(plan.block_size_k)
        key_positions = (blocks.positions[:, :, None] + inside).flatten(1)
        # What fills a row is masked; any row of the tables will do for it.
        rows_of = key_positions.clamp(max=rope.cos.shape[0] - 1)
        rotate_(keys, rope.cos[rows_of], rope.sin[rows_of])
        start = int(plan.window_starts[block])
        query_positions = torch.arange(first + low, first + high) - start + blocks.bases[:, None]
        rows = _rotated(q[low:high] * softmax_scale, query_positions, rope)
        scores = torch.bmm(rows, keys.transpose(1, 2)).float()
        future = key_positions[:, None] > query_positions[:, :, None]
        group = q.shape[1] // keys.shape[0]
        scores.masked_fill_(future.repeat(1, group, 1), -torch.inf)
        total = scores.logsumexp(-1)
        # A query before every key here: exp(-inf + inf).
        weights = (scores - total.clamp(min=torch.finfo(total.dtype).min)[..., None]).exp_()
        length = high - low
        out[low:high] = unfold_heads(torch.bmm(weights.to(values.dtype), values), length)
        lse[low:high] = unfold_heads(total, length)
    return out, lse


def _spans(plan: SparsePlan, num_tokens: int) -> list[tuple[int, int, int]]:
    """(query block, first query, end) of neighbours with equal plans joined."""
    starts, size, indices = plan.window_starts.tolist(), plan.block_size_q, plan.block_indices
    spans: list[tuple[int, int, int]] = []
    for block, start in enumerate(starts):
        low, high = block * size, min((block + 1) * size, num_tokens)
        if spans and high - spans[-1][1] <= MAX_SPAN_TOKENS:
            last = spans[-1][0]
            same = start == 0 or torch.equal(indices[last], indices[block])
            if starts[last] == start and same:
                spans[-1] = (last, spans[-1][1], high)
                continue
        spans.append((block, low, high))
    return spans


def _blocks_here(
    plan: SparsePlan, block: int, end: int, page_table: torch.Tensor, page_size: int
) -> _Blocks:
    """What queries up to position `end` attend by the plan of one query block, and lies here."""
    size, start = plan.block_size_k, int(plan.window_starts[block])
    num_kv_heads = plan.block_indices.shape[1]
    window = torch.arange(start // size, -(-end // size))
    bases = torch.zeros(num_kv_heads, dtype=torch.long)
    parts = []
    if start:
        selected = plan.block_indices[block].long()
        bases = plan.sink_tokens + (selected >= 0).sum(-1) * size
        sinks = torch.arange(plan.sink_tokens // size)
        slots = plan.sink_tokens + torch.arange(selected.shape[1]) * size
        parts.append((sinks.expand(num_kv_heads, -1), sinks * size))
        parts.append((selected, slots))
    near = bases[:, None] + torch.arange(len(window)) * size
    indices = torch.cat([*(part for part, _ in parts), window.expand(num_kv_heads, -1)], 1)
    positions = [at.expand(num_kv_heads, -1) for _, at in parts]
    positions = torch.cat([*positions, near], 1)
    present = (indices >= 0) & (page_table[indices.clamp(min=0) // (page_size // size)] >= 0)
    # Those that lie here come first in every row, in their order.
    order = (~present).to(torch.int8).argsort(dim=1, stable=True)[:, : int(present.sum(1).max())]
    present = present.gather(1, order)
    indices, positions = indices.gather(1, order), positions.gather(1, order)
    if order.shape[1]:
        # Rows are filled with keys that are here, beyond every query and with it every sum.
        some = int(indices[present][0])
        indices = indices.masked_fill(~present, some)
        positions = positions.masked_fill(~present, int(positions.max()) + end)
    return _Blocks(indices, positions, bases)


def _rotated(q: torch.Tensor, positions: torch.Tensor, rope: RopeTables) -> torch.Tensor:
    """Queries [T, num_heads, head_dim] at int64 [num_kv_heads, T], heads folded into rows."""
    num_kv_heads, length = positions.shape
    rows = fold_heads(q, num_kv_heads).clone()
    by_head = rows.view(num_kv_heads, -1, length, q.shape[2])
    rotate_(by_head, rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1))
    return rows
