"""Page tables of each KV head: what a shared table gives, to the bit, wherever the pages lie."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, SelectionSizes, SparsePlan
from hipcli.kernels.vote import vote

from .builders import Case, Shape, make_case, make_plan, quantised, written
from .oracles import relative_error
from .page_tables import assert_same_pages, bounds, needed_pages, shards, spread, without

SCALE = 0.11
BACKENDS = ["reference", "triton"]


def both_tables(shape: Shape, device: torch.device, fp8: bool) -> tuple[Case, PagedKV]:
    """A case with a shared table, and its pages spread."""
    case = make_case(shape, device)
    case = quantised(case) if fp8 else case
    return case, spread(case.kv)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape, size", [(Shape(20, 150), 16), (Shape(2, 150, head_dim=80), 1)])
def test_attention_needs_the_plans_pages_alone(shape, size, backend, fp8, device):
    case, kv = both_tables(shape, device, fp8)
    plan = make_plan(case, size, window_tokens=20, num_selected=3)
    kv = without(kv, needed_pages(case, plan))
    assert (kv.page_table[:, :10] < 0).any()
    run = sparse_decode if size == 1 else sparse_prefill
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    truth = run(case.q, case.kv, *rest, backend=backend)
    result = run(case.q, kv, *rest, backend=backend)
    for one, other in zip(truth, result, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_vote(backend, fp8, device):
    case, kv = both_tables(Shape(3, 111), device, fp8)
    rest = (case.seqlen_k, case.rope, 37, 0.3)
    for one, other in zip(
        vote(case.q, case.kv, *rest, backend=backend),
        vote(case.q, kv, *rest, backend=backend),
        strict=True,
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_score_blocks_needs_the_candidates_alone(backend, fp8, device):
    case, kv = both_tables(Shape(37, 160), device, fp8)
    candidates = torch.tensor(
        [[[1, 2, 4, 5, -1], [0, 3, 6, 8, 9]]] * 3, dtype=torch.int32, device=device
    )
    needed = torch.zeros_like(kv.page_table, dtype=torch.bool)
    for head in range(2):
        needed[head, candidates[0, head][candidates[0, head] >= 0].long()] = True
    rest = (candidates, case.rope, 37, 16, 8, 4)
    truth = score_blocks(case.q, case.kv, *rest, backend=backend)
    assert torch.equal(score_blocks(case.q, without(kv, needed), *rest, backend=backend), truth)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_tokens, size", [(1, 1), (20, 16)])
def test_selection_step(num_tokens, size, backend, fp8, device):
    case, kv = both_tables(Shape(num_tokens, 200), device, fp8)
    sizes = SelectionSizes(37, size, 8, 1, 16, candidate_pages=4, num_selected=5)
    starts = torch.full((-(-num_tokens // size),), 144, dtype=torch.int32, device=device)
    results = []
    for pages in (case.kv, kv):
        index = bounds(case, pages, num_tokens, backend=backend)
        chosen = select_step_(
            case.q, pages, index, starts, case.seqlen_k, case.rope, sizes, backend=backend
        )
        results.append((chosen, index.summaries))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_quantising(backend, device):
    case = make_case(Shape(1, 70), device)
    table, num_slots = case.kv.page_table, len(case.kv.k_pages)
    tables = torch.stack((table, (table + 1) % num_slots))
    shared, own = (written(case, [40, 30], backend, each) for each in (table, tables))
    assert_same_pages(shared, own, num_pages=5)


def test_a_page_without_a_slot(device):
    """References say which; the kernels write nothing, and what they read does not fault."""
    case, kv = both_tables(Shape(1, 70), device, True)
    table = kv.page_table.clone()
    table[1, 2:] = -1
    kv = dataclasses.replace(kv, page_table=table)
    plan = make_plan(case, 1, window_tokens=20, num_selected=3)
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    with pytest.raises(ValueError, match="page 2 is needed and a KV head has no slot for it"):
        sparse_decode(case.q, kv, *rest, backend="reference")
    sparse_decode(case.q, kv, *rest, backend="triton")
    vote(case.q, kv, case.seqlen_k, case.rope, 37, 0.3, backend="triton")
    index = new_page_index("bounds", (2, 7, 64), 16, dtype=torch.float32, device=device)
    before = kv.k_pages[:, 1].view(torch.uint8).clone()
    quantise_pages_(kv, case.keys[-9:], case.values[-9:], case.seqlen_k, backend="triton")
    update_page_index_(
        index, kv.k_pages, kv.page_table, case.seqlen_k, 70, k_scales=kv.k_scales, backend="triton"
    )
    assert torch.equal(kv.k_pages[:, 1].view(torch.uint8), before)
    assert (index.summaries[1, 2:] == 0).all() and (index.summaries[0, :5] != 0).any(-1).all()
    with pytest.raises(ValueError, match="a KV head has no slot"):
        quantise_pages_(kv, case.keys, case.values, case.seqlen_k, backend="reference")


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_shards_of_each_head_merge_to_the_whole(backend, fp8, device):
    case, kv = both_tables(Shape(20, 150), device, fp8)
    plan = make_plan(case, 16, window_tokens=20, num_selected=4)
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    truth, _ = sparse_prefill(case.q, case.kv, *rest, backend="reference")
    parts = [
        shard_attention(case.q, part, *rest, backend=backend) for part in shards(kv, [0, 1, 2])
    ]
    out, _ = merge_partials(*map(torch.stack, zip(*parts, strict=True)), backend="reference")
    assert relative_error(out, truth) < 2e-6


def _refused(case: Case, table: torch.Tensor, plan: SparsePlan, backend: str) -> None:
    kv = dataclasses.replace(case.kv, page_table=table)
    sparse_prefill(case.q, kv, plan, case.rope, case.seqlen_k, SCALE, backend=backend)


def test_refusals(device):
    case = make_case(Shape(16, 60), device)
    plan = make_plan(case, 16, window_tokens=20, num_selected=4)
    table = case.kv.page_table.expand(2, -1)
    with pytest.raises(ValueError, match=r"page_table: expected shape \[2, any\], received \[3, 6"):
        _refused(case, case.kv.page_table.expand(3, -1), plan, "reference")
    with pytest.raises(ValueError, match=r"expected shape \[num_pages\] or \[2 KV heads, num_pag"):
        _refused(case, table[None], plan, "reference")
    with pytest.raises(TypeError, match="page_table: expected dtype int32"):
        _refused(case, table.long(), plan, "reference")
    with pytest.raises(ValueError, match="page_table: the last dimension must be contiguous"):
        _refused(case, table.T.contiguous().T, plan, "reference")
    if device.type == "cpu":
        with pytest.raises(NotImplementedError, match="reads no page table of each KV head"):
            _refused(case, table, plan, "cpu")
