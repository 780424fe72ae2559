"""Pages in float8_e4m3fn with scales: how they are written, and every operator that reads them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, SelectionSizes
from hipcli.kernels.vote import vote

from .builders import Shape, make_case, make_plan, quantised, written
from .oracles import attention, relative_error, turned

SCALE = 0.11
# Kernels that multiply fp8 keys as they are stored keep eight bits of the queries, as bf16 does.
EIGHT_BITS = 2**-8


def stored(pages: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp64 values of all slots."""
    return pages.double() * scales.double()[..., None, None]


def both(kv: PagedKV) -> list[torch.Tensor]:
    return [stored(kv.k_pages, kv.k_scales), stored(kv.v_pages, kv.v_scales)]


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("seqlen_k, head_dim", [(1, 64), (63, 80), (65, 64)])
def test_written_pages_are_within_half_a_unit(backend, seqlen_k, head_dim, device):
    """Four significant bits; what is small beside the page's largest value lies on one grid."""
    case = make_case(Shape(1, seqlen_k, head_dim=head_dim), device)
    kv = written(case, [seqlen_k], backend)
    for pages, scales, truth in (
        (kv.k_pages, kv.k_scales, case.keys),
        (kv.v_pages, kv.v_scales, case.values),
    ):
        values = stored(pages, scales)
        for token in range(seqlen_k):
            slot = int(kv.page_table[token // 16])
            page = truth[token // 16 * 16 : (token // 16 + 1) * 16].double()
            largest = page.abs().amax((0, 2))
            scale = scales[slot].double()
            assert (scale.log2() == scale.log2().round()).all()
            assert (largest <= 448 * scale).all() and (largest > 224 * scale).all()
            error = (values[slot, :, token % 16] - truth[token]).abs()
            half_unit = truth[token].double().abs() / 16
            assert (error <= torch.maximum(half_unit, scale[:, None] * 2**-10)).all()


@pytest.mark.parametrize("calls", [[70], [64, 6], [1] * 70, [10, 3, 40, 17]])
def test_kernel_writes_what_the_reference_writes(calls, device):
    case = make_case(Shape(1, 70), device)
    # A page whose scale grows as it is written, with values from tiny to large.
    ramp = torch.linspace(-9, 9, 70, device=device).exp2()[:, None, None]
    case = dataclasses.replace(case, keys=case.keys * ramp, values=case.values / ramp)
    truth, kv = written(case, calls, "reference"), written(case, calls, "triton")
    for one, other in zip(both(truth), both(kv), strict=True):
        assert torch.equal(one.nan_to_num(9e9), other.nan_to_num(9e9))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_pages_do_not_depend_on_the_calls_that_wrote_them(backend, device):
    """Where a scale grew, only what is far below the page's largest value may differ."""
    case = make_case(Shape(1, 70), device)
    one, other = (both(written(case, calls, backend)) for calls in ([70], [1] * 70))
    scales = written(case, [70], backend)
    for left, right, scale in zip(one, other, (scales.k_scales, scales.v_scales), strict=True):
        differs = (left != right) & left.isfinite()
        tiny = (left.abs() < scale.double()[..., None, None] * 2**-6).logical_and(differs)
        assert torch.equal(differs, tiny)
        assert differs.float().mean() < 1e-3


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_page_begun_anew_forgets_its_scale(backend, device):
    case = make_case(Shape(1, 40), device)
    kv = written(case, [40], backend)
    small = case.keys[:5] / 1024
    length = torch.tensor([21], dtype=torch.int32, device=device)
    quantise_pages_(kv, small, small, length, backend=backend)
    slot = int(kv.page_table[1])
    assert (
        relative_error(stored(kv.k_pages, kv.k_scales)[slot, :, :5], small.transpose(0, 1)) < 0.04
    )
    zeros = torch.zeros_like(small[:1])
    length.fill_(17)
    quantise_pages_(kv, zeros, zeros, length, backend=backend)
    assert (kv.k_scales[slot] == 2.0**-100).all()
    assert (stored(kv.k_pages, kv.k_scales)[slot, :, 0] == 0).all()


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(
    "shape",
    [Shape(17, 17), Shape(33, 150, num_heads=3, num_kv_heads=1), Shape(20, 90, head_dim=80)],
)
def test_attention(backend, shape, device):
    case = quantised(make_case(shape, device))
    for run, size in ((sparse_prefill, 16), (sparse_decode, 1)):
        few = dataclasses.replace(shape, num_tokens=min(shape.num_tokens, 3 if size == 1 else 99))
        now = dataclasses.replace(case, shape=few, q=case.q[-few.num_tokens :])
        plan = make_plan(now, size, window_tokens=20, num_selected=4)
        arguments = (now.q, now.kv, plan, now.rope, now.seqlen_k, SCALE)
        true_out, true_lse = attention(now, plan, SCALE)
        out, lse = run(*arguments, backend=backend)
        assert relative_error(out, true_out) < 2e-6
        assert relative_error(lse, true_lse) < 2e-6


def test_attention_in_half_precision_with_partial_rotary(device):
    shape = Shape(20, 90, head_dim=80, rotary_dim=32)
    case = quantised(make_case(shape, device, torch.float16))
    plan = make_plan(case, 16, window_tokens=20, num_selected=4)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth, _ = sparse_prefill(*arguments, backend="reference")
    assert relative_error(sparse_prefill(*arguments, backend="triton")[0], truth) < 2e-3


@pytest.mark.parametrize("backend, budget", [("reference", 1e-6), ("triton", EIGHT_BITS)])
@pytest.mark.parametrize("shape", [Shape(3, 111), Shape(5, 64, head_dim=80)])
def test_vote(backend, budget, shape, device):
    case = quantised(make_case(shape, device))
    page_max, lse = vote(case.q, case.kv, case.seqlen_k, case.rope, 37, 0.3, backend=backend)
    group = shape.num_heads // shape.num_kv_heads
    truth = torch.full(page_max.shape, -torch.inf, dtype=torch.float64, device=device)
    for head in range(shape.num_heads):
        rows = turned(case.q[:, head], 37, case.rope) * 0.3
        logits = rows @ case.keys[:, head // group].double().T
        for page, part in enumerate(logits.split(16, dim=1)):
            truth[:, head, page] = part.max(1).values
    finite = truth > -torch.inf
    assert (page_max[~finite] == -torch.inf).all()
    assert relative_error(page_max[finite], truth[finite]) < budget
    assert relative_error(lse, truth.logsumexp(-1)) < budget


@pytest.mark.parametrize("size, stride, shape", [(1, 1, Shape(1, 111)), (16, 4, Shape(37, 160))])
def test_score_blocks(size, stride, shape, device):
    case = quantised(make_case(shape, device))
    blocks = -(-shape.num_tokens // size)
    listed = torch.tensor([1, 2, 4, 5, -1], dtype=torch.int32, device=device)
    candidates = listed.expand(blocks, 2, 5).contiguous()
    arguments = (case.q, case.kv, candidates, case.rope, 37, size, 8, stride)
    truth = score_blocks(*arguments, backend="reference")
    scores = score_blocks(*arguments, backend="triton")
    finite = truth > -torch.inf
    assert (scores[~finite] == -torch.inf).all()
    assert relative_error(scores[finite], truth[finite]) < EIGHT_BITS


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("kind", ["bounds", "mean"])
def test_page_index_summarises_stored_values(backend, kind, device):
    case = quantised(make_case(Shape(1, 70), device))
    index = new_page_index(
        kind, (2, len(case.kv.page_table), 64), 16, dtype=torch.float32, device=device
    )
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 70,
        k_scales=case.kv.k_scales, backend=backend,
    )  # fmt: skip
    for page in range(5):
        keys = case.keys[page * 16 : (page + 1) * 16].double()
        truth = keys.mean(0)[:, None]
        if kind == "bounds":
            truth = torch.stack((keys.min(0).values, keys.max(0).values), dim=1)
        assert relative_error(index.summaries[:, page], truth) < 1e-6


def test_selection_step_is_its_operators(device):
    case = quantised(make_case(Shape(1, 200), device))
    starts = torch.tensor([160], dtype=torch.int32, device=device)
    sizes = SelectionSizes(37, 1, 8, 1, 16, candidate_pages=4, num_selected=5)
    chosen = []
    for backend in ("reference", "triton"):
        shape = (2, len(case.kv.page_table), 64)
        index = new_page_index("bounds", shape, 16, dtype=torch.float32, device=device)
        update_page_index_(
            index, case.kv.k_pages, case.kv.page_table, case.seqlen_k - 1, 199,
            k_scales=case.kv.k_scales, backend="reference",
        )  # fmt: skip
        chosen.append(
            select_step_(
                case.q, case.kv, index, starts, case.seqlen_k, case.rope, sizes, backend=backend
            )
        )
        keys = case.keys[192:].double()
        truth = torch.stack((keys.min(0).values, keys.max(0).values), dim=1)
        assert relative_error(index.summaries[:, 12], truth) < 1e-6
    # Eight bits of the queries may order two nearly equal blocks the other way.
    for one, other in zip(chosen[0][0].tolist(), chosen[1][0].tolist(), strict=True):
        assert len(set(one) & set(other)) >= 4


def test_refusals(device):
    case = quantised(make_case(Shape(16, 60), device))
    plan = make_plan(case, 16, window_tokens=20, num_selected=4)
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    bare = dataclasses.replace(case.kv, k_scales=None)
    with pytest.raises(ValueError, match="k_scales: expected with float8_e4m3fn or int8 pages"):
        sparse_prefill(case.q, bare, *rest, backend="reference")
    short = dataclasses.replace(case.kv, v_scales=case.kv.v_scales[:, :1])
    with pytest.raises(ValueError, match="v_scales: expected shape"):
        sparse_prefill(case.q, short, *rest, backend="reference")
    moved = dataclasses.replace(case.kv, v_scales=case.kv.v_scales.contiguous())
    with pytest.raises(ValueError, match="v_scales: expected the strides of k_scales"):
        sparse_prefill(case.q, moved, *rest, backend="reference")
    plain = make_case(Shape(16, 60), device)
    with pytest.raises(TypeError, match="k_pages: expected dtype float8_e4m3fn"):
        quantise_pages_(plain.kv, plain.keys, plain.values, plain.seqlen_k, backend="reference")
    with pytest.raises(ValueError, match="v: expected shape"):
        quantise_pages_(case.kv, case.keys, case.values[1:], case.seqlen_k, backend="reference")
