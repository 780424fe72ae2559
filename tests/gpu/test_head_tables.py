"""Page tables of each KV head on a GPU: bit for bit what a shared table gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, SelectionSizes, SparsePlan
from hipcli.kernels.vote import vote
from tests.kernels.builders import Case, Shape, make_case, make_plan, quantised, written
from tests.kernels.page_tables import assert_same_pages, bounds, needed_pages, spread, without

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
SCALE = 0.1
LLAMA = Shape(100, 3000, num_heads=32, num_kv_heads=8, head_dim=128, page_size=64)


def both_tables(num_tokens: int, fp8: bool) -> tuple[Case, PagedKV]:
    """A case with a shared table, and its pages spread."""
    shape = dataclasses.replace(LLAMA, num_tokens=num_tokens)
    case = make_case(shape, DEVICE, torch.bfloat16, positions=4096)
    case = quantised(case) if fp8 else case
    return case, spread(case.kv)


def some_plan(case: Case, size: int) -> SparsePlan:
    """Blocks of `size` queries: most pages are not attended."""
    return make_plan(case, size, 300, num_selected=30, sink_tokens=64, block_size_k=16)


def assert_same(truth, result) -> None:
    for one, other in zip(truth, result, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("num_tokens, size", [(100, 64), (2, 1)])
def test_attention(num_tokens, size, fp8):
    case, kv = both_tables(num_tokens, fp8)
    plan = some_plan(case, size)
    kv = without(kv, needed_pages(case, plan))
    assert (kv.page_table[:, :40] < 0).any()
    run = sparse_decode if size == 1 else sparse_prefill
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    assert_same(run(case.q, case.kv, *rest), run(case.q, kv, *rest))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 16, 64])
def test_vote(num_tokens, fp8):
    case, kv = both_tables(num_tokens, fp8)
    rest = (case.seqlen_k, case.rope, 900, SCALE)
    assert_same(vote(case.q, case.kv, *rest), vote(case.q, kv, *rest))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("num_tokens, size, stride", [(100, 64, 4), (1, 1, 1)])
def test_selection(num_tokens, size, stride, fp8):
    case, kv = both_tables(num_tokens, fp8)
    blocks = -(-num_tokens // size)
    candidates = torch.stack([torch.randperm(40, device=DEVICE)[:20] for _ in range(blocks * 8)])
    candidates = candidates.view(blocks, 8, 20).int()
    rest = (candidates, case.rope, 900, size, 16, stride)
    assert torch.equal(score_blocks(case.q, case.kv, *rest), score_blocks(case.q, kv, *rest))
    starts = torch.full((blocks,), 2304, dtype=torch.int32, device=DEVICE)
    sizes = SelectionSizes(900, size, 16, stride, 64, candidate_pages=20, num_selected=30)
    results = []
    for pages in (case.kv, kv):
        index = bounds(case, pages, num_tokens, torch.bfloat16)
        chosen = select_step_(case.q, pages, index, starts, case.seqlen_k, case.rope, sizes)
        results.append((chosen, index.summaries))
    assert_same(*results)


def test_quantising():
    case, _ = both_tables(1, True)
    table, num_slots = case.kv.page_table, len(case.kv.k_pages)
    tables = torch.stack([(table + head) % num_slots for head in range(8)])
    calls = [2000, 1, 63, 936]
    shared, own = (written(case, calls, table=each) for each in (table, tables))
    assert_same_pages(shared, own, num_pages=47)


def test_pages_without_slots_do_not_fault():
    case, kv = both_tables(1, True)
    kv = dataclasses.replace(kv, page_table=torch.full_like(kv.page_table, -1))
    plan = some_plan(case, 1)
    before = kv.k_pages.view(torch.uint8).clone()
    sparse_decode(case.q, kv, plan, case.rope, case.seqlen_k, SCALE)
    vote(case.q, kv, case.seqlen_k, case.rope, 900, SCALE)
    quantise_pages_(kv, case.keys[-9:], case.values[-9:], case.seqlen_k)
    torch.cuda.synchronize()
    assert torch.equal(kv.k_pages.view(torch.uint8), before)
