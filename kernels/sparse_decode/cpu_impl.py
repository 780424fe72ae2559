"""Decoding on a CPU: tokens with one window, each with blocks of its own, in few operations.

The tokens of a question select one by one. Token by token they would take a dozen small operations
each, and threads that sleep between two of them cost more than the arithmetic (docs/log.md). Here
sinks and window are one product for all tokens, and the selected blocks of several tokens are
gathered, turned and multiplied at once. So three parts of the keys stand in frames of their own: a
query is turned to its position in each, and one softmax joins them.

A single token, and tokens that attend everything, take the way of `sparse_prefill`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..cpu_codes import decode_into, page_scales
from ..cpu_common import (
    RowTables,
    block_rows,
    block_table,
    causal_tail,
    fold_heads,
    key_range,
    unfold_heads,
)
from ..sparse_prefill.cpu_impl import sparse_prefill
from ..types import PagedKV, RopeTables, SparsePlan

# Selected keys that are gathered at once: they are to stay in cache from one operation to the next.
FAR_BYTES = 4 << 20


def sparse_decode(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    counters: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.sparse_decode.sparse_decode`."""
    starts = plan.window_starts.tolist()
    tables = _Tables.of(kv, plan.block_size_k)
    # Windows only move on, so the first one tells of all.
    if len(starts) == 1 or starts[0] == 0 or tables is None:
        return sparse_prefill(q, kv, plan, rope, seqlen_k, softmax_scale)
    turning = RowTables.of(rope, plan.local_tokens + len(q), q.dtype)
    call = _Call(q * softmax_scale, kv, plan, turning, int(seqlen_k) - len(q), tables)
    parts = [_attend(call, low, high, starts[low]) for low, high in _runs(starts)]
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs), torch.cat(lses)


def _runs(starts: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours with the same window, as [low, high)."""
    low = 0
    for high in range(1, len(starts) + 1):
        if high == len(starts) or starts[high] != starts[low]:
            yield low, high
            low = high


@dataclass(frozen=True, slots=True)
class _Tables:
    """Keys and values as tables of blocks, see `cpu_common.block_table`."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, kv: PagedKV, block_size_k: int) -> _Tables | None:
        """None where pages are no such tables."""
        keys, values = (block_table(pages, block_size_k) for pages in (kv.k_pages, kv.v_pages))
        if keys is None or values is None or kv.k_pages.stride() != kv.v_pages.stride():
            return None
        return cls(keys, values)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the runs of a call share; `q` is scaled, and its first token stands at `first`."""

    q: torch.Tensor
    kv: PagedKV
    plan: SparsePlan
    turning: RowTables
    first: int
    tables: _Tables


def _attend(
    call: _Call, low: int, high: int, window_start: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [low, high), which have one window: out [T, num_heads, head_dim] and lse."""
    plan, turning, count = call.plan, call.turning, high - low
    num_kv_heads, sinks = call.kv.k_pages.shape[1], plan.sink_tokens
    chosen = plan.block_indices[low:high]
    held = (chosen >= 0).sum(2)
    most = int(held.max())
    rows = fold_heads(call.q[low:high], num_kv_heads).unflatten(1, (-1, count))
    # The query's place in the frame of the window, and behind the blocks of each KV head.
    near = torch.arange(call.first + low, call.first + high) - window_start
    far = near + sinks + held.T * plan.block_size_k
    near_rows = turning.rotate_at(rows, near.expand(num_kv_heads, -1).unsqueeze(1))
    far_rows = turning.rotate_at(rows, far.unsqueeze(1))

    k_window, v_window = _turned(call, window_start, call.first + high)
    k_sinks, v_sinks = _turned(call, 0, sinks)
    window = torch.bmm(near_rows.flatten(1, 2), k_window.transpose(1, 2)).unflatten(1, (-1, count))
    window[..., -count:] += causal_tail(count, 1, window.dtype)
    first = torch.bmm(far_rows.flatten(1, 2), k_sinks.transpose(1, 2)).unflatten(1, (-1, count))
    # By token, then KV head, as the selected keys lie.
    by_token = far_rows.permute(2, 0, 1, 3)
    pieces = list(_pieces(call, chosen[:, :, :most]))
    selected = torch.cat(
        [
            torch.bmm(by_token[some].flatten(0, 1), _keys(call, blocks).transpose(1, 2))
            for some, blocks in pieces
        ]
    ).unflatten(0, (count, -1))
    _close_(selected, held * plan.block_size_k)
    scores = torch.cat((first, window, selected.permute(1, 2, 0, 3)), -1)
    peak = scores.amax(-1).float()
    weights = scores.softmax(-1)
    # The largest weight is exp(largest score - lse): two maxima cost less than another exp.
    lse = peak - weights.amax(-1).float().log()
    here = weights[..., : sinks + window.shape[-1]].flatten(1, 2).contiguous()
    out = torch.bmm(here, torch.cat((v_sinks, v_window), 1)).float()
    there = weights[..., here.shape[-1] :].permute(2, 0, 1, 3)
    added = torch.cat(
        [
            torch.bmm(there[some].flatten(0, 1).contiguous(), _values(call, blocks))
            for some, blocks in pieces
        ]
    ).unflatten(0, (count, -1))
    out += added.permute(1, 2, 0, 3).flatten(1, 2)
    return unfold_heads(out.to(call.q.dtype), count), unfold_heads(lse.flatten(1, 2), count)


def _turned(call: _Call, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of tokens [start, end), turned in a frame that begins with them, and their values."""
    keys, values = (x.contiguous() for x in key_range(call.kv, start, end, call.q.dtype))
    return call.turning.rotate_into(torch.empty_like(keys), keys, 0), values


def _close_(scores: torch.Tensor, num_keys: torch.Tensor) -> None:
    """Hide what stands behind the last key of a token and KV head, in place.

    Args:
        scores: [T, num_kv_heads, group, n].
        num_keys: int64 [T, num_kv_heads], how many of the n there are.
    """
    if bool((num_keys < scores.shape[-1]).any()):
        place = torch.arange(scores.shape[-1])
        scores.masked_fill_((place >= num_keys.unsqueeze(-1)).unsqueeze(2), -torch.inf)


def _pieces(call: _Call, blocks: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some tokens after others, with their blocks, 0 for none: int64 [T, num_kv_heads, n]."""
    blocks = blocks.long().clamp(min=0)
    row_bytes = call.plan.block_size_k * call.q.shape[2] * call.q.element_size()
    each = max(1, FAR_BYTES // max(blocks[0].numel() * row_bytes, 1))
    for start in range(0, len(blocks), each):
        some = slice(start, start + each)
        yield some, blocks[some]


def _keys(call: _Call, blocks: torch.Tensor) -> torch.Tensor:
    """Selected keys, turned behind the sinks: [T * num_kv_heads, n * block_size_k, head_dim]."""
    keys = _gathered(call, call.tables.keys, call.kv.k_scales, blocks)
    return call.turning.rotate_into(torch.empty_like(keys), keys, call.plan.sink_tokens)


def _values(call: _Call, blocks: torch.Tensor) -> torch.Tensor:
    """Selected values, as `_keys` has keys."""
    return _gathered(call, call.tables.values, call.kv.v_scales, blocks)


def _gathered(
    call: _Call, table: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor
) -> torch.Tensor:
    kv, size = call.kv, call.plan.block_size_k
    rows = block_rows(kv.k_pages, kv.page_table, blocks, size)
    found = table.index_select(0, rows.flatten())
    if scales is not None:
        pages = blocks // (kv.k_pages.shape[2] // size)
        of_blocks = page_scales(scales, kv.page_table, pages).reshape(-1, 1)
        found = decode_into(torch.empty(found.shape, dtype=call.q.dtype), found, of_blocks)
    return found.view(blocks.shape[0] * blocks.shape[1], -1, kv.k_pages.shape[3])
