"""Shards of a sequence: merged they are the whole, whatever page lies where."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV

from .builders import Case, Shape, make_case, make_plan, quantised
from .oracles import attention, relative_error
from .page_tables import shards

SCALE = 0.11
SHAPES = {
    "one token": Shape(1, 1),
    "page + 1": Shape(17, 17),
    "group 3": Shape(33, 150, num_heads=3, num_kv_heads=1),
    "partial rotary": Shape(40, 180, head_dim=80, rotary_dim=32),
}
# Owners of the pages, repeated as often as needed; of three shards the last one may have none.
PLACEMENTS = {
    "interleaved": [0, 1, 2],
    "empty shard": [0, 1, 1],
    "one page": [0] * 4 + [1] + [0] * 20,
    "lent": [2, 2, 2, 1, 1, 0, 0, 0],
}


def shards_alone(case: Case, owners: list[int]) -> list[PagedKV]:
    """The case's pages in three shards; what lies elsewhere is NaN here."""
    used = torch.arange(len(case.kv.page_table)) < -(-case.shape.seqlen_k // case.shape.page_size)
    parts = []
    for part in shards(case.kv, owners):
        away = case.kv.page_table[used & (part.page_table < 0)].long()
        k_pages, v_pages = part.k_pages.clone(), part.v_pages.clone()
        k_pages[away], v_pages[away] = torch.nan, torch.nan
        parts.append(PagedKV(k_pages, v_pages, part.page_table))
    return parts


# Triton's interpreter is slow: each shape, size and placement, but not all with all.
TRITON_CASES = [
    (1, "one token", "interleaved"),
    (1, "page + 1", "lent"),
    (16, "page + 1", "empty shard"),
    (16, "group 3", "one page"),
    (16, "partial rotary", "interleaved"),
]
CASES = [
    (size, name, placed, backend)
    for backend in ("reference", "cpu")
    for size, name, placed in itertools.product((1, 16), SHAPES, PLACEMENTS)
]


@pytest.mark.parametrize(
    "size, name, placed, backend", [*CASES, *((*case, "triton") for case in TRITON_CASES)]
)
def test_merged_shards_are_the_whole(size, name, placed, backend):
    case = make_case(SHAPES[name], torch.device("cpu"))
    # Where part of a page is unwritten it holds NaN, which no caller's store does.
    case = dataclasses.replace(case, kv=_zeroed(case.kv))
    plan = make_plan(case, block_size_q=size, window_tokens=40, num_selected=4)
    results = [
        shard_attention(case.q, kv, plan, case.rope, case.seqlen_k, SCALE, backend=backend)
        for kv in shards_alone(case, PLACEMENTS[placed])
    ]
    outs, lses = (torch.stack(parts) for parts in zip(*results, strict=True))
    assert torch.isfinite(outs).all()
    out, lse = merge_partials(outs, lses)
    true_out, true_lse = attention(case, plan, SCALE)
    assert relative_error(out, true_out) < 2e-6
    assert relative_error(lse, true_lse) < 2e-6


def test_all_pages_here_is_sparse_prefill():
    case = make_case(Shape(33, 150), torch.device("cpu"))
    plan = make_plan(case, block_size_q=16, window_tokens=40, num_selected=4)
    arguments = (case.q, _zeroed(case.kv), plan, case.rope, case.seqlen_k, SCALE)
    out, lse = shard_attention(*arguments)
    true_out, true_lse = sparse_prefill(*arguments)
    assert relative_error(out, true_out) < 2e-6
    assert relative_error(lse, true_lse) < 2e-6


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_shards_of_fp8_pages(backend):
    case = quantised(make_case(Shape(17, 70), torch.device("cpu")))
    plan = make_plan(case, block_size_q=16, window_tokens=40, num_selected=4)
    results = [
        shard_attention(case.q, kv, plan, case.rope, case.seqlen_k, SCALE, backend=backend)
        for kv in shards(case.kv, [0, 1])
    ]
    outs, lses = (torch.stack(parts) for parts in zip(*results, strict=True))
    out, lse = merge_partials(outs, lses)
    true_out, true_lse = attention(case, plan, SCALE)
    assert relative_error(out, true_out) < 2e-6
    assert relative_error(lse, true_lse) < 2e-6


def _zeroed(kv: PagedKV) -> PagedKV:
    return PagedKV(kv.k_pages.nan_to_num(0.0), kv.v_pages.nan_to_num(0.0), kv.page_table)
