"""Groups of tensors that travel together through the operators' arguments.

They hold tensors and the sizes needed to read them, check nothing by themselves and own
nothing: `kernels.checks` looks at them where an operator is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The values of a page come to a slot in so many parts, each when something of it is attended.
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys (un-rotated) and values of one layer in pages.

    Args:
        k_pages: [P, num_kv_heads, page_size, head_dim]; may be a strided view. In the dtype of
            the queries, or codes with scales: float8_e4m3fn, or int8, which only the CPU reads.
        v_pages: the same shape and dtype.
        page_table: int32 [num_pages], logical page -> slot (first dimension of the pages); or
            [num_kv_heads, num_pages] where each KV head's pages lie in slots of their own, -1 for
            those that lie nowhere here. An operator must need none of these: references raise,
            Triton reads slot 0 in their place and writes nothing.
        k_scales: fp32 [P, num_kv_heads] of codes (key = stored * scale for float8_e4m3fn,
            (stored + 1/2) * scale for int8), else None; may be a strided view.
        v_scales: the same of the values, with the same strides.
    """

    k_pages: torch.Tensor
    v_pages: torch.Tensor
    page_table: torch.Tensor
    k_scales: torch.Tensor | None = None
    v_scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class HostPages:
    """Pages of one layer in main memory, in slabs of equally many.

    The record of a page is laid out as a slot of `PagedKV` is, with the same strides: keys of all
    KV heads, values, and behind them the scales of both, where there are any. The records of a
    slab follow one another.

    Args:
        bases: int64 [num_slabs], the address of each slab's first record, a multiple of 16; 0 for a
            slab that is not in main memory. A GPU reads and writes there by itself, so to it the
            memory must be pinned. Whoever calls keeps it alive.
        slab_pages: pages of a slab.
    """

    bases: torch.Tensor
    slab_pages: int


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Which page of which KV head stands in which slot, in rows, a row a KV head.

    Args:
        pages: int32 [rows, num_pages], the slot of each page or -1: a page table.
        owners: int32 [rows, num_slots], the page in each slot or -1.
        stamps: int32 [rows, num_slots], when it was last wanted, by the clock.
        clock: int32 [1], counts plans.
        kept: int32 [2]: pages before the first, and from the second on, make no way.
        counts: int64 [3], pages wanted and pages missed so far, and how many quarters of keys or
            values had to come for them.
        values: uint8 [rows, num_slots, QUARTERS], contiguous in each row: 1 where a slot has that
            quarter of its page's values. Keys it has always.
    """

    pages: torch.Tensor
    owners: torch.Tensor
    stamps: torch.Tensor
    clock: torch.Tensor
    kept: torch.Tensor
    counts: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Half-split RoPE tables; an attention scaling factor is already multiplied in.

    Args:
        cos: [max_positions, rotary_dim], the half table repeated twice; fp32, or fp16/bf16
            where the caller prefers less traffic to the last bits.
        sin: the same shape and dtype.
    """

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class SparsePlan:
    """What every block of queries attends to: sinks, selected blocks, window.

    Query block b of KV head h attends tokens [0, sink_tokens) if window_starts[b] > 0, its
    selected blocks, and [window_starts[b], i] for query position i. window_starts[b] = 0
    makes the block dense; its selected blocks are then ignored.

    Args:
        block_indices: int32 [num_q_blocks, num_kv_heads, num_selected], ascending block
            numbers in units of block_size_k tokens, -1 for the unused tail; every block lies
            in [sink_tokens, window_starts[b]).
        window_starts: int32 [num_q_blocks], tokens, multiples of the page size.
        block_size_q: queries a block, tokens.
        block_size_k: keys a selected block, tokens; divides the page size.
        sink_tokens: tokens, a multiple of the page size.
        local_tokens: an upper bound of sinks + selected + window (queries included) over all
            query blocks, tokens. Launches and scratch are sized by it; a block that exceeds it
            comes out as NaN.
    """

    block_indices: torch.Tensor
    window_starts: torch.Tensor
    block_size_q: int
    block_size_k: int
    sink_tokens: int
    local_tokens: int


@dataclass(frozen=True, slots=True)
class PageIndex:
    """Summaries of the un-rotated keys of every page, one per KV head.

    Args:
        kind: "bounds" (channel minimum, then maximum) or "mean".
        summaries: [num_kv_heads, num_pages, S, head_dim], S = 2 for bounds and 1 for mean;
            bf16, fp16, fp32 or fp8_e4m3; contiguous for Triton, elsewhere maybe a strided view.
        scales: fp32 [num_kv_heads, num_pages] for fp8_e4m3 (value = stored * scale), else None.
        page_size: tokens.
    """

    kind: str
    summaries: torch.Tensor
    scales: torch.Tensor | None
    page_size: int


@dataclass(frozen=True, slots=True)
class SelectionSizes:
    """How much `select_step_` selects, and in which units.

    Args:
        distance: position of the queries while the keys stand at 0.
        block_size_q: queries a block, tokens.
        block_size_k: keys a selected block, tokens; divides the page size.
        query_stride: neighbouring queries averaged into one; 1 keeps all.
        sink_tokens: tokens at the start that are never selected, a multiple of the page size.
        candidate_pages: most pages whose keys are scored exactly.
        num_selected: most blocks chosen of them.
    """

    distance: int
    block_size_q: int
    block_size_k: int
    query_stride: int
    sink_tokens: int
    candidate_pages: int
    num_selected: int
