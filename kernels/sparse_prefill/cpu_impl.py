"""Sparse attention on a CPU: batched matrix products over gathered blocks.

Faster than `reference.py` because it gathers whole blocks, folds the query heads of a KV head into
rows, rotates a key once for all query blocks whose window holds it, and keeps the scores of one
query block in cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..cpu_common import (
    attend_rows,
    causal_tail,
    fold_heads,
    key_blocks,
    key_range,
    rotate_,
    unfold_heads,
)
from ..types import PagedKV, RopeTables, SparsePlan

# Neighbouring query blocks with the same plan are attended together up to this many queries.
MAX_SPAN_TOKENS = 64


@dataclass(frozen=True, slots=True)
class _Span:
    """Queries [low, high) of the call that attend the same blocks and one window."""

    low: int
    high: int
    window_start: int
    block: int


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments and results of one call; `first` is the position of its first query."""

    q: torch.Tensor
    kv: PagedKV
    plan: SparsePlan
    rope: RopeTables
    first: int
    softmax_scale: float
    out: torch.Tensor
    lse: torch.Tensor


def sparse_prefill(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.sparse_prefill.sparse_prefill`."""
    out = torch.empty(q.shape, dtype=q.dtype)
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    call = _Call(q, kv, plan, rope, int(seqlen_k) - q.shape[0], softmax_scale, out, lse)
    spans = _spans(plan, q.shape[0])
    dense = [span for span in spans if span.window_start == 0]
    if dense:
        _attend_dense(call, dense)
    sparse = [span for span in spans if span.window_start > 0]
    if sparse:
        counts = (plan.block_indices[[span.block for span in sparse]] >= 0).sum(-1)
        if bool((counts == counts[0, 0]).all()):
            _attend_sparse(call, sparse, int(counts[0, 0]))
        else:
            _attend_ragged(call, sparse, counts.tolist())
    return out, lse


def _spans(plan: SparsePlan, num_tokens: int) -> list[_Span]:
    """Query blocks in order, neighbours with equal plans joined."""
    starts = plan.window_starts.tolist()
    size = plan.block_size_q
    spans: list[_Span] = []
    for block, window_start in enumerate(starts):
        low, high = block * size, min((block + 1) * size, num_tokens)
        if spans and high - spans[-1].low <= MAX_SPAN_TOKENS:
            last = spans[-1]
            indices = plan.block_indices
            if last.window_start == window_start and (
                window_start == 0 or torch.equal(indices[last.block], indices[block])
            ):
                spans[-1] = _Span(last.low, high, window_start, last.block)
                continue
        spans.append(_Span(low, high, window_start, block))
    return spans


def _attend_dense(call: _Call, spans: list[_Span]) -> None:
    end = call.first + max(span.high for span in spans)
    keys, values = key_range(call.kv, 0, end)
    rotate_(keys, call.rope.cos[:end], call.rope.sin[:end])
    for span in spans:
        last = call.first + span.high
        _attend(call, span, keys[:, :last], values[:, :last], call.first + span.low)


def _attend_sparse(call: _Call, spans: list[_Span], num_selected: int) -> None:
    """Spans of which every KV head has the same number of blocks.

    All windows share one copy of their keys, rotated once: key j of the earliest window stands at
    `packed`, and a later span shifts its sinks and selected blocks instead.
    """
    plan, rope = call.plan, call.rope
    packed = plan.sink_tokens + num_selected * plan.block_size_k
    origin = min(span.window_start for span in spans)
    end = call.first + max(span.high for span in spans)
    reach = packed + end - origin
    if reach > rope.cos.shape[0] and len(spans) > 1:
        middle = len(spans) // 2
        _attend_sparse(call, spans[:middle], num_selected)
        _attend_sparse(call, spans[middle:], num_selected)
        return
    window_k, window_v = key_range(call.kv, origin, end)
    rotate_(window_k, rope.cos[packed:reach], rope.sin[packed:reach])
    num_kv_heads = window_k.shape[0]
    sinks = torch.arange(plan.sink_tokens // plan.block_size_k).expand(num_kv_heads, -1)
    for span in spans:
        shift = span.window_start - origin
        near = slice(shift, call.first + span.high - origin)
        keys, values = window_k[:, near], window_v[:, near]
        if packed:
            blocks = torch.cat((sinks, plan.block_indices[span.block, :, :num_selected]), 1)
            far_k, far_v = key_blocks(call.kv, blocks, plan.block_size_k)
            rotate_(far_k, rope.cos[shift : shift + packed], rope.sin[shift : shift + packed])
            keys, values = torch.cat((far_k, keys), 1), torch.cat((far_v, values), 1)
        _attend(call, span, keys, values, packed + call.first + span.low - origin)


def _attend_ragged(call: _Call, spans: list[_Span], counts: list[list[int]]) -> None:
    """Spans whose KV heads have different numbers of blocks: one head at a time."""
    plan, kv = call.plan, call.kv
    group = call.q.shape[1] // len(counts[0])
    for span, per_head in zip(spans, counts, strict=True):
        for head, count in enumerate(per_head):
            heads = slice(head * group, (head + 1) * group)
            one = slice(head, head + 1)
            alone = _Call(
                call.q[:, heads],
                PagedKV(kv.k_pages[:, one], kv.v_pages[:, one], kv.page_table),
                SparsePlan(
                    plan.block_indices[:, one],
                    plan.window_starts,
                    plan.block_size_q,
                    plan.block_size_k,
                    plan.sink_tokens,
                    plan.local_tokens,
                ),
                call.rope,
                call.first,
                call.softmax_scale,
                call.out[:, heads],
                call.lse[:, heads],
            )
            _attend_sparse(alone, [span], count)


def _attend(
    call: _Call, span: _Span, keys: torch.Tensor, values: torch.Tensor, position: int
) -> None:
    """One span whose first query stands at `position` in the frame of the rotated keys."""
    num_kv_heads, num_keys, head_dim = keys.shape
    length = span.high - span.low
    rows = fold_heads(call.q[span.low : span.high], num_kv_heads) * call.softmax_scale
    by_head = rows.view(num_kv_heads, -1, length, head_dim)
    at = slice(position, position + length)
    rotate_(by_head, call.rope.cos[at], call.rope.sin[at])
    group = by_head.shape[1]
    tail = causal_tail(length, group, rows.dtype) if length > 1 else None
    out, lse = attend_rows(rows, keys, values, tail)
    call.out[span.low : span.high] = unfold_heads(out, length)
    call.lse[span.low : span.high] = unfold_heads(lse, length)
