"""Sparse attention on a CPU: batched matrix products over gathered blocks.

Faster than `reference.py` because it gathers whole blocks, folds the query heads of a KV head into
rows, rotates a key once for all query blocks whose window holds it, keeps the scores of one query
block in cache, and writes into buffers that outlive a query block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..cpu_common import (
    RowBuffers,
    attend_rows,
    fold_heads,
    half_tables,
    key_blocks,
    key_range,
    rotate_,
    rotate_into,
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
    lse: torch.Tensor | None
    buffers: RowBuffers


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
    out = torch.empty(q.shape, dtype=q.dtype)
    lse = torch.empty(q.shape[:2], dtype=torch.float32) if return_lse else None
    rope = half_tables(rope, plan.local_tokens + q.shape[0], q.dtype)
    first = int(seqlen_k) - q.shape[0]
    call = _Call(q, kv, plan, rope, first, softmax_scale, out, lse, RowBuffers())
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
    queries = _rotated_queries(call, spans, call.first)
    for span in spans:
        last = call.first + span.high
        _attend(call, span, queries, keys[:, :last], values[:, :last])


def _attend_sparse(call: _Call, spans: list[_Span], num_selected: int) -> None:
    """Spans of which every KV head has the same number of blocks.

    All windows share one copy of their keys, rotated once: key j of the earliest window stands at
    `packed`, and a later span shifts its sinks and selected blocks instead. So the queries of all
    spans stand in one frame, and are rotated once as well.
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
    queries = _rotated_queries(call, spans, packed + call.first - origin)
    num_kv_heads, _, head_dim = window_k.shape
    sinks = torch.arange(plan.sink_tokens // plan.block_size_k).expand(num_kv_heads, -1)
    for span in spans:
        shift = span.window_start - origin
        near = slice(shift, call.first + span.high - origin)
        keys, values = window_k[:, near], window_v[:, near]
        if packed:
            blocks = torch.cat((sinks, plan.block_indices[span.block, :, :num_selected]), 1)
            far_k, far_v = key_blocks(call.kv, blocks, plan.block_size_k)
            shape = (num_kv_heads, packed + keys.shape[1], head_dim)
            joined_k, joined_v = call.buffers.keys(shape, far_k), call.buffers.values(shape, far_v)
            at = slice(shift, shift + packed)
            rotate_into(joined_k[:, :packed], far_k, rope.cos[at], rope.sin[at])
            joined_k[:, packed:], joined_v[:, :packed], joined_v[:, packed:] = keys, far_v, values
            keys, values = joined_k, joined_v
        _attend(call, span, queries, keys, values)


def _attend_ragged(call: _Call, spans: list[_Span], counts: list[list[int]]) -> None:
    """Spans whose KV heads have different numbers of blocks: one head at a time."""
    plan, kv = call.plan, call.kv
    group = call.q.shape[1] // len(counts[0])
    for span, per_head in zip(spans, counts, strict=True):
        for head, count in enumerate(per_head):
            heads = slice(head * group, (head + 1) * group)
            one = slice(head, head + 1)
            alone = replace(
                call,
                q=call.q[:, heads],
                kv=PagedKV(kv.k_pages[:, one], kv.v_pages[:, one], kv.page_table),
                plan=replace(plan, block_indices=plan.block_indices[:, one]),
                out=call.out[:, heads],
                lse=None if call.lse is None else call.lse[:, heads],
            )
            _attend_sparse(alone, [span], count)


def _rotated_queries(call: _Call, spans: list[_Span], position: int) -> torch.Tensor:
    """Queries of the spans, scaled; query 0 of the call stands at `position`.

    Returns:
        [num_kv_heads, group, N, head_dim], of which only the spans' queries are meant to be read.
    """
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    num_kv_heads = call.kv.k_pages.shape[1]
    length, _, head_dim = call.q.shape
    rows = fold_heads(call.q * call.softmax_scale, num_kv_heads)
    by_head = rows.view(num_kv_heads, -1, length, head_dim)
    at = slice(position + low, position + high)
    rotate_(by_head[:, :, low:high], call.rope.cos[at], call.rope.sin[at])
    return by_head


def _attend(
    call: _Call, span: _Span, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """One span; its last key is that of its last query."""
    num_kv_heads, group, _, head_dim = queries.shape
    length = span.high - span.low
    rows = queries[:, :, span.low : span.high].reshape(num_kv_heads, -1, head_dim)
    tail = call.buffers.tail(length, group, rows.dtype)
    out, lse = attend_rows(rows, keys, values, tail, call.buffers, call.lse is not None)
    call.out[span.low : span.high] = unfold_heads(out, length)
    if call.lse is not None and lse is not None:
        call.lse[span.low : span.high] = unfold_heads(lse, length)
