"""The CPU implementations against the references, on shapes that hurt."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, PageIndex
from hipcli.kernels.vote import vote

from .builders import Case, Shape, make_case, make_plan
from .oracles import relative_error

CPU = torch.device("cpu")
SCALE = 0.11
DISTANCE = 37
BUDGET = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
SHAPES = {
    "one token": Shape(1, 1),
    "page + 1": Shape(17, 17),
    "111 tokens, group 1": Shape(40, 111, num_heads=2),
    "group 3": Shape(33, 150, num_heads=3, num_kv_heads=1),
    "group 9": Shape(35, 150, num_heads=9, num_kv_heads=1),
    "head_dim 80": Shape(20, 90, head_dim=80),
    "partial rotary": Shape(20, 90, head_dim=80, rotary_dim=32),
}


def in_order(case: Case) -> Case:
    """The same keys and values in slots that follow one another, keys apart from values."""
    table = case.kv.page_table
    k_pages, v_pages = (pages[table.long()] for pages in (case.kv.k_pages, case.kv.v_pages))
    order = torch.arange(len(table), dtype=torch.int32)
    return dataclasses.replace(case, kv=PagedKV(k_pages, v_pages, order))


def rounded(case: Case, dtype: torch.dtype) -> Case:
    """The case with tables in its own dtype, as an engine keeps them."""
    rope = dataclasses.replace(case.rope, cos=case.rope.cos.to(dtype), sin=case.rope.sin.to(dtype))
    return dataclasses.replace(case, rope=rope)


@pytest.mark.parametrize("arrange", [lambda case: case, in_order], ids=["scattered", "in order"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [1, 16])
def test_attention(size, name, arrange):
    case = arrange(make_case(SHAPES[name], CPU))
    plan = make_plan(case, block_size_q=size, window_tokens=20, num_selected=4)
    run = sparse_decode if size == 1 else sparse_prefill
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    true_out, true_lse = run(*arguments, backend="reference")
    out, lse = run(*arguments, backend="cpu")
    assert relative_error(out, true_out) < BUDGET[torch.float32]
    assert relative_error(lse, true_lse) < BUDGET[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 16])
def test_attention_in_half_precision(size, dtype):
    case = rounded(make_case(SHAPES["group 3"], CPU, dtype), dtype)
    plan = make_plan(case, block_size_q=size, window_tokens=20, num_selected=4)
    run = sparse_decode if size == 1 else sparse_prefill
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    true_out, true_lse = run(*arguments, backend="reference")
    out, lse = run(*arguments, backend="cpu")
    assert relative_error(out, true_out) < BUDGET[dtype]
    assert relative_error(lse, true_lse) < BUDGET[dtype]


@pytest.mark.parametrize("size", [1, 16])
def test_equal_plans_are_attended_together(size):
    """Every head with the same number of blocks, neighbours with the same window: the fast path."""
    case = make_case(Shape(40, 200), CPU)
    plan = make_plan(case, block_size_q=size, window_tokens=20, num_selected=3)
    blocks = torch.tensor([2, 5, 9], dtype=torch.int32).expand(plan.block_indices.shape)
    plan = dataclasses.replace(plan, block_indices=blocks.contiguous())
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth = sparse_prefill(*arguments, backend="reference")
    for value, true in zip(sparse_prefill(*arguments, backend="cpu"), truth, strict=True):
        assert relative_error(value, true) < BUDGET[torch.float32]


def test_tables_no_longer_than_the_plan_needs():
    """Windows that share a copy of their keys reach further than one plan does."""
    case = make_case(Shape(64, 200), CPU)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=3)
    blocks = torch.tensor([2, 4, 6], dtype=torch.int32).expand(plan.block_indices.shape)
    local_tokens = 16 + 3 * 8 + 20 + 2 * 16
    plan = dataclasses.replace(plan, block_indices=blocks.contiguous(), local_tokens=local_tokens)
    rope = dataclasses.replace(
        case.rope, cos=case.rope.cos[:local_tokens], sin=case.rope.sin[:local_tokens]
    )
    arguments = (case.q, case.kv, plan, rope, case.seqlen_k, SCALE)
    truth = sparse_prefill(*arguments, backend="reference")
    for value, true in zip(sparse_prefill(*arguments, backend="cpu"), truth, strict=True):
        assert relative_error(value, true) < BUDGET[torch.float32]


def strided(index: PageIndex) -> PageIndex:
    """The index as an engine stores it: page after page, the heads inside a page."""
    summaries = index.summaries.transpose(0, 1).contiguous().transpose(0, 1)
    return dataclasses.replace(index, summaries=summaries)


def fill(case: Case, kind: str, dtype: torch.dtype, backend: str, new_tokens: int) -> PageIndex:
    shape = (case.shape.num_kv_heads, len(case.kv.page_table), case.shape.head_dim)
    index = new_page_index(kind, shape, case.shape.page_size, dtype=dtype, device=CPU)
    index = strided(index) if backend == "cpu" else index
    arguments = (case.kv.k_pages, case.kv.page_table, case.seqlen_k, new_tokens)
    update_page_index_(index, *arguments, backend=backend)
    return index


@pytest.mark.parametrize("arrange", [lambda case: case, in_order], ids=["scattered", "in order"])
@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("seqlen_k, new_tokens", [(1, 1), (63, 63), (64, 64), (70, 8), (70, 6)])
def test_page_index(arrange, kind, dtype, seqlen_k, new_tokens):
    case = arrange(make_case(Shape(1, seqlen_k), CPU))
    truth = fill(case, kind, dtype, "reference", new_tokens)
    index = fill(case, kind, dtype, "cpu", new_tokens)
    torch.testing.assert_close(index.summaries.float(), truth.summaries.float())
    if truth.scales is not None:
        torch.testing.assert_close(index.scales, truth.scales)


SCORED = {
    "one query": (1, 1, Shape(1, 111)),
    "strided": (16, 4, Shape(37, 160)),
    "short last block": (16, 4, Shape(33, 160)),
    "fewer queries than a block": (16, 4, Shape(7, 160)),
    "group 3, every query": (8, 1, Shape(20, 150, num_heads=3, num_kv_heads=1)),
    "stride beside the block": (16, 3, Shape(17, 130, num_heads=2, head_dim=80)),
}


def same_scores(scores: torch.Tensor, truth: torch.Tensor, budget: float) -> None:
    finite = truth > -torch.inf
    assert torch.equal(scores > -torch.inf, finite)
    assert relative_error(scores[finite], truth[finite]) < budget


@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", SCORED)
def test_score_pages(kind, dtype, name):
    size, stride, shape = SCORED[name]
    case = make_case(shape, CPU)
    index = strided(fill(case, kind, dtype, "reference", shape.seqlen_k))
    starts = torch.tensor([80, 0, 96, 64, 16], dtype=torch.int32)[: -(-shape.num_tokens // size)]
    arguments = (case.q, index, starts, case.rope, DISTANCE, size, stride, 16)
    truth = score_pages(*arguments, backend="reference")
    same_scores(score_pages(*arguments, backend="cpu"), truth, 2e-6)


def test_pages_are_scored_tile_by_tile(monkeypatch):
    size, stride, shape = SCORED["strided"]
    case = make_case(shape, CPU)
    index = strided(fill(case, "bounds", torch.float32, "reference", shape.seqlen_k))
    starts = torch.tensor([128, 144, 96], dtype=torch.int32)
    arguments = (case.q, index, starts, case.rope, DISTANCE, size, stride, 16)
    truth = score_pages(*arguments, backend="reference")
    monkeypatch.setattr("hipcli.kernels.score_pages.cpu_impl.TILE_SCORES", 100)
    same_scores(score_pages(*arguments, backend="cpu"), truth, 2e-6)


@pytest.mark.parametrize("name", SCORED)
def test_score_blocks(name):
    size, stride, shape = SCORED[name]
    case = make_case(shape, CPU)
    blocks, heads = -(-shape.num_tokens // size), shape.num_kv_heads
    listed = torch.tensor([[1, 2, 4, 5, -1], [2, 3, 4, -1, -1]], dtype=torch.int32)
    for rows in (torch.arange(blocks * heads) % 2, torch.arange(heads).repeat(blocks) % 2):
        candidates = listed[rows].view(blocks, heads, 5)
        arguments = (case.q, case.kv, candidates, case.rope, DISTANCE, size, 8, stride)
        truth = score_blocks(*arguments, backend="reference")
        same_scores(score_blocks(*arguments, backend="cpu"), truth, 2e-6)


@pytest.mark.parametrize("n, k", [(1, 1), (63, 7), (111, 111), (65, 100), (1000, 128), (1003, 9)])
def test_select(n, k):
    scores = torch.randn(3, 2, n, generator=torch.Generator().manual_seed(n))
    scores[0] = scores[0].round()
    scores[1, 0, n // 2 :] = -torch.inf
    scores[1, 1, : n // 3] = torch.nan
    scores[2, 0] = torch.where(torch.arange(n) % 2 == 0, 0.0, -0.0)
    scores[2, 1] = -torch.inf
    truth = select_blocks(scores, k, backend="reference")
    assert torch.equal(select_blocks(scores, k, backend="cpu"), truth)
    candidates = torch.arange(3, 3 + n, dtype=torch.int32).expand(3, 2, n).contiguous()
    finer = scores.repeat_interleave(2, -1)
    truth = select_blocks(finer, k, candidates, backend="reference")
    assert torch.equal(select_blocks(finer, k, candidates, backend="cpu"), truth)


@pytest.mark.parametrize("arrange", [lambda case: case, in_order], ids=["scattered", "in order"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1),
        Shape(3, 111),
        Shape(5, 64, head_dim=80, rotary_dim=32),
        Shape(23, 70, num_heads=3, num_kv_heads=1),
    ],
)
def test_vote(shape, arrange):
    case = arrange(make_case(shape, CPU))
    for keys in (shape.seqlen_k, max(1, shape.seqlen_k - 30)):
        length = torch.tensor([keys], dtype=torch.int32)
        arguments = (case.q, case.kv, length, case.rope, DISTANCE, 0.3)
        true_max, true_lse = vote(*arguments, backend="reference")
        page_max, lse = vote(*arguments, backend="cpu")
        same_scores(page_max, true_max, 2e-6)
        assert relative_error(lse, true_lse) < 2e-6
