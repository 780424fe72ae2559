"""Sparse attention on a CPU: batched matrix products over gathered blocks.

Faster than `reference.py` because it gathers whole blocks, folds the query heads of a KV head into
rows, rotates and places a key once for all query blocks whose window holds it, keeps the scores of
one query block in cache, and writes into buffers that outlive a query block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..cpu_codes import decoded_blocks, page_scales
from ..cpu_common import (
    RowBuffers,
    RowTables,
    attend_rows,
    block_rows,
    block_table,
    fold_heads,
    gather_blocks,
    key_range,
    unfold_heads,
)
from ..paging import one_head
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
    rope: RowTables
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
    tables = RowTables.of(rope, plan.local_tokens + q.shape[0], q.dtype)
    first = int(seqlen_k) - q.shape[0]
    call = _Call(q, kv, plan, tables, first, softmax_scale, out, lse, RowBuffers())
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
    keys, values = key_range(call.kv, 0, end, call.q.dtype)
    keys = call.rope.rotate_into(torch.empty_like(keys), keys, 0)
    queries = _rotated_queries(call, spans, call.first)
    for span, rows in zip(spans, queries, strict=True):
        last = call.first + span.high
        _attend(call, span, rows, keys[:, :last], values[:, :last])


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
    window_k, window_v = key_range(call.kv, origin, end, call.q.dtype)
    window_k = rope.rotate_into(torch.empty_like(window_k), window_k, packed)
    rows = _rotated_queries(call, spans, packed + call.first - origin)
    far = _FarBlocks.of(call, spans, num_selected) if packed else None
    joined: _Joined | None = None
    for place, (span, queries) in enumerate(zip(spans, rows, strict=True)):
        shift = span.window_start - origin
        near = call.first + span.high - span.window_start
        if joined is None or joined.near != near:
            joined = _Joined.of(call, (window_k, window_v), packed, near, shift)
        keys, values = joined.at(shift)
        if far is not None:
            rope.rotate_into(keys[:, :packed], far.keys(place), shift)
            values[:, :packed] = far.values(place)
        _attend(call, span, queries, keys, values)


@dataclass(slots=True)
class _Joined:
    """Far and near keys and values of one span after another, in memory that moves on with them.

    A product wants them side by side, and neighbours share most of a window. So a span stands
    `shift` rows behind the first one: window keys stay where they are, only new ones are added, and
    what is far takes the place of keys that no later span attends. The new keys of a head reach
    into the next head's rows, as far as that one's far blocks have moved on.

    Args:
        packed: rows of what is far, left to who attends.
        near: tokens of the window, the same for all of the spans.
        start: shift of the first one.
        windows: keys and values [num_kv_heads, N, head_dim] of all windows.
        flat: memory for both.
        placed: tokens of the windows that are in it.
    """

    packed: int
    near: int
    start: int
    windows: tuple[torch.Tensor, torch.Tensor]
    flat: tuple[torch.Tensor, torch.Tensor]
    placed: int

    @classmethod
    def of(
        cls,
        call: _Call,
        windows: tuple[torch.Tensor, torch.Tensor],
        packed: int,
        near: int,
        start: int,
    ) -> _Joined:
        num_kv_heads, tokens, head_dim = windows[0].shape
        # The last span can stand as far behind as there are tokens behind the first window.
        rows = num_kv_heads * (packed + near) + tokens - start - near
        shape = (rows * head_dim,)
        flat = call.buffers.keys(shape, windows[0]), call.buffers.values(shape, windows[1])
        return cls(packed, near, start, windows, flat, start)

    def at(self, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [num_kv_heads, packed + near, head_dim] of the span there, which is
        behind the one before; the first `packed` rows are to be filled."""
        num_kv_heads, _, head_dim = self.windows[0].shape
        length, end = self.packed + self.near, shift + self.near
        first, size = (shift - self.start) * head_dim, num_kv_heads * length * head_dim
        keys, values = (
            x[first : first + size].view(num_kv_heads, length, head_dim) for x in self.flat
        )
        for rows, window in zip((keys, values), self.windows, strict=True):
            rows[:, length - (end - self.placed) :] = window[:, self.placed : end]
        self.placed = end
        return keys, values


@dataclass(frozen=True, slots=True)
class _FarBlocks:
    """Sinks and selected blocks of spans, gathered for one span at a time.

    Args:
        call: its pages, and a buffer for what was gathered last.
        blocks: int64 [num_spans, num_kv_heads, n].
        tables: keys and values as tables of blocks, or None where they are not.
        rows: [num_spans, num_kv_heads * n] in the tables.
        scales: of the pages of keys' and values' blocks where these are codes, else None.
    """

    call: _Call
    blocks: torch.Tensor
    tables: tuple[torch.Tensor, torch.Tensor] | None
    rows: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor] | None

    @classmethod
    def of(cls, call: _Call, spans: list[_Span], num_selected: int) -> _FarBlocks:
        plan, kv, size = call.plan, call.kv, call.plan.block_size_k
        selected = plan.block_indices[[span.block for span in spans], :, :num_selected].long()
        sinks = torch.arange(plan.sink_tokens // size).expand(*selected.shape[:2], -1)
        blocks = torch.cat((sinks, selected), 2)
        scales = None
        if kv.k_scales is not None and kv.v_scales is not None:
            pages = blocks // (kv.k_pages.shape[2] // size)
            scales = (
                page_scales(kv.k_scales, kv.page_table, pages),
                page_scales(kv.v_scales, kv.page_table, pages),
            )
        k_table, v_table = (block_table(pages, size) for pages in (kv.k_pages, kv.v_pages))
        alike = kv.k_pages.stride() == kv.v_pages.stride()
        if k_table is None or v_table is None or not alike:
            return cls(call, blocks, None, blocks, scales)
        rows = block_rows(kv.k_pages, kv.page_table, blocks, size)
        return cls(call, blocks, (k_table, v_table), rows.flatten(1), scales)

    def keys(self, place: int) -> torch.Tensor:
        """Of the span there: [num_kv_heads, n * block_size_k, head_dim], until the next call."""
        return self._gather(0, place)

    def values(self, place: int) -> torch.Tensor:
        """The same of values."""
        return self._gather(1, place)

    def _gather(self, which: int, place: int) -> torch.Tensor:
        call = self.call
        rows = self._rows(which, place)
        if self.scales is None:
            return rows
        out = call.buffers.decoded(tuple(rows.shape), call.q.dtype)
        return decoded_blocks(rows, self.scales[which][place], call.q.dtype, out)

    def _rows(self, which: int, place: int) -> torch.Tensor:
        """What lies in the pages, see `keys`."""
        kv, size = self.call.kv, self.call.plan.block_size_k
        if self.tables is None:
            pages = (kv.k_pages, kv.v_pages)[which]
            return gather_blocks(pages, kv.page_table, self.blocks[place], size)
        table, rows = self.tables[which], self.rows[place]
        out = self.call.buffers.gathered((len(rows), table.shape[1]), table)
        torch.index_select(table, 0, rows, out=out)
        return out.view(kv.k_pages.shape[1], -1, kv.k_pages.shape[3])


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
                kv=one_head(kv, head),
                plan=replace(plan, block_indices=plan.block_indices[:, one]),
                out=call.out[:, heads],
                lse=None if call.lse is None else call.lse[:, heads],
            )
            _attend_sparse(alone, [span], count)


def _rotated_queries(call: _Call, spans: list[_Span], position: int) -> list[torch.Tensor]:
    """Queries of each span, scaled; query 0 of the call stands at `position`.

    Returns:
        Per span [num_kv_heads, group * T, head_dim], rows head by head.
    """
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    num_kv_heads = call.kv.k_pages.shape[1]
    rows = fold_heads(call.q[low:high] * call.softmax_scale, num_kv_heads)
    by_head = rows.unflatten(1, (-1, high - low))
    by_head = call.rope.rotate_into(torch.empty_like(by_head), by_head, position + low)
    return [by_head[:, :, span.low - low : span.high - low].flatten(1, 2) for span in spans]


def _attend(
    call: _Call, span: _Span, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """One span, whose queries are [num_kv_heads, rows, head_dim]; its last key is that of its last
    query."""
    length = span.high - span.low
    tail = call.buffers.tail(length, queries.shape[1] // length, queries.dtype)
    out, lse = attend_rows(queries, keys, values, tail, call.buffers, call.lse is not None)
    call.out[span.low : span.high] = unfold_heads(out, length)
    if call.lse is not None and lse is not None:
        call.lse[span.low : span.high] = unfold_heads(lse, length)
