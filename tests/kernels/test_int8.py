"""Pages in int8 with scales: how they are written, and every operator of a CPU that reads them."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.paging import dequantise
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV
from hipcli.kernels.vote import vote

from . import builders
from .builders import Case, Shape, make_case, make_plan, quantised
from .oracles import attention, relative_error

SCALE = 0.11
CPU = torch.device("cpu")
BACKENDS = ["reference", "cpu"]
TOKENS = 70
written = partial(builders.written, dtype=torch.int8)


def ramped(dtype: torch.dtype) -> Case:
    """Pages whose scales grow as they are written, with values from tiny to large."""
    case = make_case(Shape(1, TOKENS), CPU, dtype)
    ramp = torch.linspace(-9, 9, TOKENS).exp2()[:, None, None].to(dtype)
    return dataclasses.replace(case, keys=case.keys * ramp, values=case.values / ramp)


def assert_same(one: PagedKV, other: PagedKV) -> None:
    for name in ("k_pages", "v_pages", "k_scales", "v_scales"):
        left, right = getattr(one, name), getattr(other, name)
        assert torch.equal(left.nan_to_num(9e9), right.nan_to_num(9e9)), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_values_are_within_half_a_step(backend: str, dtype: torch.dtype) -> None:
    case = ramped(dtype)
    kv = written(case, [TOKENS], backend)
    for pages, scales, truth in (
        (kv.k_pages, kv.k_scales, case.keys),
        (kv.v_pages, kv.v_scales, case.values),
    ):
        for page in range(5):
            slot = int(kv.page_table[page])
            tokens = truth[page * 16 : (page + 1) * 16].double().transpose(0, 1)
            scale = scales[slot].double()
            largest = tokens.abs().amax((1, 2))
            assert (scale.log2() == scale.log2().round()).all()
            assert (largest < 128 * scale).all() and (largest >= 64 * scale).all()
            values = dequantise(pages[slot], scales[slot]).double()[:, : tokens.shape[1]]
            assert ((values - tokens).abs() <= scale[:, None, None] / 2).all()


def test_what_codes_stand_for_is_exact_in_bf16() -> None:
    codes = torch.arange(-128, 128).to(torch.int8)[None, None, :, None]
    scales = torch.tensor([[2.0**-9]])
    exact = (codes.double() + 0.5) * 2.0**-9
    assert torch.equal(dequantise(codes, scales, torch.bfloat16).double(), exact)


@settings(deadline=None, max_examples=30)
@given(
    cuts=st.sets(st.integers(1, TOKENS - 1)),
    backend=st.sampled_from(BACKENDS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_pages_do_not_depend_on_the_calls_that_wrote_them(
    cuts: set[int], backend: str, dtype: torch.dtype
) -> None:
    """In not one bit, however often a scale grew: chunks, single tokens, and all at once."""
    case = ramped(dtype)
    borders = [0, *sorted(cuts), TOKENS]
    calls = [high - low for low, high in zip(borders[:-1], borders[1:], strict=True)]
    assert_same(written(case, calls, backend), written(case, [TOKENS], "reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_largest_value_on_the_border_is_a_larger_scale(backend: str) -> None:
    """-128 steps exactly: the same whether it comes first, later or alone."""
    case = make_case(Shape(1, 16), CPU)
    keys = torch.full_like(case.keys, 0.9)
    keys[5] = -1.0
    case = dataclasses.replace(case, keys=keys, values=-keys)
    whole = written(case, [16], "reference")
    assert (whole.k_scales[int(whole.page_table[0])] == 2.0**-6).all()
    assert_same(written(case, [1] * 16, backend), whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_page_begun_anew_forgets_its_scale(backend: str) -> None:
    case = make_case(Shape(1, 40), CPU)
    kv = written(case, [40], backend)
    small = case.keys[:5] / 1024
    length = torch.tensor([21], dtype=torch.int32)
    quantise_pages_(kv, small, small, length, backend=backend)
    slot = int(kv.page_table[1])
    values = dequantise(kv.k_pages[slot], kv.k_scales[slot])[:, :5]
    assert relative_error(values, small.transpose(0, 1)) < 0.02
    length.fill_(17)
    quantise_pages_(kv, 0 * small[:1], 0 * small[:1], length, backend=backend)
    assert (kv.k_scales[slot] == 2.0**-100).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape",
    [Shape(17, 17), Shape(33, 150, num_heads=3, num_kv_heads=1), Shape(20, 90, head_dim=80)],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_attention(backend: str, shape: Shape, ragged: bool) -> None:
    case = quantised(make_case(shape, CPU), torch.int8)
    for run, size in ((sparse_prefill, 16), (sparse_decode, 1)):
        few = dataclasses.replace(shape, num_tokens=min(shape.num_tokens, 3 if size == 1 else 99))
        now = dataclasses.replace(case, shape=few, q=case.q[-few.num_tokens :])
        plan = make_plan(now, size, window_tokens=20, num_selected=4 if ragged else 1)
        out, lse = run(now.q, now.kv, plan, now.rope, now.seqlen_k, SCALE, backend=backend)
        true_out, true_lse = attention(now, plan, SCALE)
        assert relative_error(out, true_out) < 2e-6
        assert relative_error(lse, true_lse) < 2e-6


@pytest.mark.parametrize("block_size_k", [8, 16])
def test_attention_in_bf16_is_that_of_the_numbers(block_size_k: int) -> None:
    """Codes are bf16 numbers exactly, so pages that hold these give the same bits."""
    case = quantised(make_case(Shape(64, 200), CPU, torch.bfloat16), torch.int8)
    kv = case.kv
    plain = PagedKV(
        dequantise(kv.k_pages, kv.k_scales, torch.bfloat16),
        dequantise(kv.v_pages, kv.v_scales, torch.bfloat16),
        kv.page_table,
    )
    plan = make_plan(case, 16, window_tokens=20, num_selected=4, block_size_k=block_size_k)
    one, other = (
        sparse_prefill(case.q, pages, plan, case.rope, case.seqlen_k, SCALE, backend="cpu")
        for pages in (kv, plain)
    )
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("shape", [Shape(3, 111), Shape(5, 64, head_dim=80)])
def test_vote_and_block_scores(shape: Shape) -> None:
    case = quantised(make_case(shape, CPU), torch.int8)
    listed = torch.tensor([0, 2, 3, -1], dtype=torch.int32)
    candidates = listed.expand(shape.num_tokens, 2, 4).contiguous()
    results = []
    for backend in BACKENDS:
        arguments = (case.q, case.kv, case.seqlen_k, case.rope, 37, 0.3)
        page_max, lse = vote(*arguments, backend=backend)
        scores = score_blocks(case.q, case.kv, candidates, case.rope, 37, 1, 8, 1, backend=backend)
        results.append((page_max, lse, scores))
    for truth, value in zip(*results, strict=True):
        finite = truth > -torch.inf
        assert torch.equal(value > -torch.inf, finite)
        assert relative_error(value[finite], truth[finite]) < 2e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bounds", "mean"])
def test_page_index_summarises_stored_values(backend: str, kind: str) -> None:
    case = quantised(make_case(Shape(1, TOKENS), CPU), torch.int8)
    shape = (2, len(case.kv.page_table), 64)
    index = new_page_index(kind, shape, 16, dtype=torch.float32, device=CPU)
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, TOKENS,
        k_scales=case.kv.k_scales, backend=backend,
    )  # fmt: skip
    for page in range(5):
        keys = case.keys[page * 16 : (page + 1) * 16].double()
        truth = keys.mean(0)[:, None]
        if kind == "bounds":
            truth = torch.stack((keys.min(0).values, keys.max(0).values), dim=1)
        assert relative_error(index.summaries[:, page], truth) < 1e-6


def test_a_shard_reads_codes_too() -> None:
    case = quantised(make_case(Shape(17, 70), CPU), torch.int8)
    plan = make_plan(case, 16, window_tokens=20, num_selected=4)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth, value = (shard_attention(*arguments, backend=backend)[0] for backend in BACKENDS)
    assert relative_error(value, truth) < 2e-6


def test_triton_refuses() -> None:
    case = quantised(make_case(Shape(16, 60), CPU), torch.int8)
    with pytest.raises(NotImplementedError, match="the triton backend reads no int8 pages"):
        vote(case.q, case.kv, case.seqlen_k, case.rope, 3, 1.0, backend="triton")
