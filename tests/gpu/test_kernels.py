"""Kernels in bf16 on a GPU against their references, at sizes the interpreter cannot reach."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_step import triton_impl as step_impl
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, SelectionSizes, SparsePlan
from hipcli.kernels.vote import vote
from tests.gpu import budgets
from tests.kernels.builders import Case, Shape, make_case, make_plan, rope_tables
from tests.kernels.oracles import relative_error

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
SCALE = 0.1
LLAMA = Shape(100, 3000, num_heads=32, num_kv_heads=8, head_dim=128, page_size=64)
SHAPES = {
    "llama": LLAMA,
    "smollm": Shape(70, 2000, num_heads=9, num_kv_heads=3, head_dim=64, page_size=64),
    "one head each": Shape(65, 1500, num_heads=4, num_kv_heads=4, head_dim=96, page_size=64),
    "wide": Shape(64, 1500, num_heads=4, num_kv_heads=2, head_dim=256, page_size=64),
    "sixteen heads share": Shape(33, 1500, num_heads=32, num_kv_heads=2, page_size=64),
    "partial rotary": Shape(64, 1500, head_dim=80, rotary_dim=32, page_size=64),
}


def gpu_case(shape: Shape, dtype: torch.dtype = torch.bfloat16) -> Case:
    """A case whose tables reach 4,096 packed positions."""
    return make_case(shape, DEVICE, dtype, positions=4096)


def assert_attention(case: Case, plan: SparsePlan, result, truth) -> None:
    """Out and lse within the budgets that torch's own errors set."""
    for value, true, by_torch in zip(
        result, truth, budgets.attention(case, plan, SCALE), strict=True
    ):
        assert relative_error(value, true) < budgets.budget(by_torch, true, case.q.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SHAPES)
def test_prefill(name, dtype):
    case = gpu_case(SHAPES[name], dtype)
    plan = make_plan(case, 64, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth = sparse_prefill(*arguments, backend="reference")
    assert_attention(case, plan, sparse_prefill(*arguments), truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SHAPES)
def test_decode(name, dtype):
    case = gpu_case(dataclasses.replace(SHAPES[name], num_tokens=3), dtype)
    plan = make_plan(case, 1, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth = sparse_decode(*arguments, backend="reference")
    assert_attention(case, plan, sparse_decode(*arguments), truth)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    "tile",
    [(128, 28, 4, 1), (128, 3, 4, 1), (64, 55, 4, 1, 128), (64, 7, 4, 2), (128, 28, 8, 1, 128)],
)
def test_decode_is_the_same_every_time(tile, early):
    """Whoever arrives last joins the same parts in the same order: not a bit may differ."""
    if early and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launching before the predecessor's end needs compute capability 9.0")
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=2))
    plan = make_plan(case, 1, window_tokens=1000, num_selected=60, sink_tokens=64, block_size_k=16)
    counters = torch.zeros(16, dtype=torch.int32, device=DEVICE)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    truth = sparse_decode(*arguments, backend="reference")
    results = [
        decode_impl.launch(*arguments, counters, decode_impl.Tile(*tile), early) for _ in range(50)
    ]
    assert_attention(case, plan, results[0], truth)
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0]) and torch.equal(lse, results[0][1])
    assert not counters.any()


def test_prefill_with_half_tables():
    """fp16 tables cost less than the rounding of bf16 keys."""
    case = gpu_case(LLAMA)
    plan = make_plan(case, 64, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    half = dataclasses.replace(case.rope, cos=case.rope.cos.half(), sin=case.rope.sin.half())
    rest = (case.seqlen_k, SCALE)
    truth = sparse_prefill(case.q, case.kv, plan, case.rope, *rest, backend="reference")
    assert_attention(case, plan, sparse_prefill(case.q, case.kv, plan, half, *rest), truth)


def attained(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Softmax mass of the chosen entries of every row."""
    weights = scores.float().softmax(-1)
    picked = weights.gather(-1, chosen.long().clamp(min=0)).masked_fill(chosen < 0, 0.0)
    return picked.sum(-1)


@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("num_tokens, size, stride", [(1, 1, 1), (100, 64, 4), (100, 64, 1)])
def test_page_selection(kind, dtype, num_tokens, size, stride):
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=20000))
    shape = (8, len(case.kv.page_table), 128)
    index = new_page_index(kind, shape, 64, dtype=dtype, device=DEVICE)
    update_page_index_(index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 20000)
    again = new_page_index(kind, shape, 64, dtype=dtype, device=DEVICE)
    update_page_index_(
        again, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 20000, backend="reference"
    )
    assert relative_error(index.summaries.float(), again.summaries.float()) < 5e-3

    blocks = -(-num_tokens // size)
    starts = torch.full((blocks,), 18944, dtype=torch.int32, device=DEVICE)
    arguments = (case.q, index, starts, case.rope, 1024, size, stride, 256)
    truth = score_pages(*arguments, backend="reference")
    scores = score_pages(*arguments)
    assert torch.equal(scores == -torch.inf, truth == -torch.inf)
    finite = truth > -torch.inf
    by_torch = budgets.page_scores(case, index, 1024, size, stride)
    allowed = budgets.budget(by_torch, truth, case.q.dtype)
    assert relative_error(scores[finite], truth[finite]) < allowed
    scaled = truth * SCALE
    best = attained(scaled, select_blocks(truth, 32, backend="reference"))
    assert (attained(scaled, select_blocks(scores, 32)) >= 0.999 * best).all()


@pytest.mark.parametrize("num_tokens, size, stride", [(1, 1, 1), (100, 64, 4)])
def test_block_scores(num_tokens, size, stride):
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=8000))
    blocks = -(-num_tokens // size)
    candidates = torch.stack(
        [torch.randperm(120, device=DEVICE)[:33].sort().values for _ in range(blocks * 8)]
    )
    candidates[:, 30:] = -1
    candidates = candidates.int().view(blocks, 8, 33)
    arguments = (case.q, case.kv, candidates, case.rope, 1024, size, 16, stride)
    truth = score_blocks(*arguments, backend="reference")
    scores = score_blocks(*arguments)
    finite = truth > -torch.inf
    assert torch.equal(scores == -torch.inf, ~finite)
    by_torch = budgets.block_scores(case, candidates, 1024, (size, 16, stride))
    allowed = budgets.budget(by_torch, truth, case.q.dtype)
    assert relative_error(scores[finite], truth[finite]) < allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("num_tokens, size, stride", [(1, 1, 1), (200, 64, 4)])
def test_selection_step(num_tokens, size, stride, early, dtype):
    """The fused step chooses exactly what its operators choose, every time."""
    if early and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launching before the predecessor's end needs compute capability 9.0")
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=20000))
    blocks = -(-num_tokens // size)
    starts = torch.full((blocks,), 18688, dtype=torch.int32, device=DEVICE)
    sizes = SelectionSizes(1024, size, 16, stride, 256, candidate_pages=64, num_selected=100)
    indices = []
    for _ in range(2):
        shape = (8, len(case.kv.page_table), 128)
        index = new_page_index("bounds", shape, 64, dtype=dtype, device=DEVICE)
        before = case.seqlen_k - num_tokens
        update_page_index_(index, case.kv.k_pages, case.kv.page_table, before, int(before))
        indices.append(index)
    update_page_index_(indices[0], case.kv.k_pages, case.kv.page_table, case.seqlen_k, num_tokens)
    scores = score_pages(case.q, indices[0], starts, case.rope, 1024, size, stride, 256)
    pages = select_blocks(scores, 64)
    scores = score_blocks(case.q, case.kv, pages, case.rope, 1024, size, 16, stride)
    truth = select_blocks(scores, 100, pages)
    counters = torch.zeros(blocks * 8, dtype=torch.int32, device=DEVICE)
    for _ in range(30):
        chosen = step_impl.launch(
            case.q, case.kv, indices[1], starts, case.seqlen_k, case.rope, sizes, counters,
            step_impl.Variant(early=early),
        )  # fmt: skip
        assert torch.equal(chosen, truth)
    assert not counters.any()
    for left, right in ((x.summaries.float(), x.scales) for x in indices):
        assert left.isfinite().all() and (right is None or right.isfinite().all())
    assert torch.equal(indices[0].summaries.float(), indices[1].summaries.float())


@pytest.mark.parametrize("n, k", [(16384, 256), (1024, 128), (60000, 300), (5, 8)])
def test_selection_is_exact(n, k):
    scores = torch.randn(6, 8, n, device=DEVICE)
    scores[0] = scores[0].round()
    scores[1, :, n // 2 :] = -torch.inf
    truth = select_blocks(scores, k, backend="reference")
    assert torch.equal(select_blocks(scores, k), truth)


def assert_votes(case: Case) -> None:
    """The kernel votes as the reference does, within the budget of its dtype."""
    arguments = (case.q, case.kv, case.seqlen_k, case.rope, 1024, SCALE)
    true_max, true_lse = vote(*arguments, backend="reference")
    page_max, lse = vote(*arguments)
    finite = true_max > -torch.inf
    assert torch.equal(page_max == -torch.inf, ~finite)
    by_torch = budgets.votes(case, 1024, SCALE)
    used = by_torch.shape[2]
    allowed = budgets.budget(by_torch, true_max[..., :used], case.q.dtype)
    assert relative_error(page_max[finite], true_max[finite]) < allowed
    allowed = budgets.budget(by_torch.logsumexp(-1), true_lse, case.q.dtype)
    assert relative_error(lse, true_lse) < allowed


@pytest.mark.parametrize("num_tokens", [1, 7, 32, 64])
def test_vote(num_tokens):
    assert_votes(gpu_case(dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=5000)))


def test_a_graph_serves_growing_lengths():
    """One captured decode step gives the eager result at every length it is replayed with."""
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=1))
    plan = make_plan(case, 1, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    plan = dataclasses.replace(plan, local_tokens=2048)
    length = case.seqlen_k.clone()
    arguments = (case.q, case.kv, plan, case.rope, length, SCALE)
    sparse_decode(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = sparse_decode(*arguments)
    for seqlen in (2800, 2999, 3000):
        length.fill_(seqlen)
        graph.replay()
        truth = sparse_decode(*arguments, backend="reference")
        now = dataclasses.replace(case, seqlen_k=length)
        assert_attention(now, plan, (out, lse), truth)


def test_addresses_beyond_four_gigabytes():
    """Slots at the end of a million-token layer: offsets that no 32-bit number holds."""
    pages, tail = 16400, 40
    memory = torch.empty(pages, 2, 8, 64, 128, dtype=torch.bfloat16, device=DEVICE)
    memory[-tail:].normal_()
    table = torch.arange(pages - tail, pages, dtype=torch.int32, device=DEVICE)
    far = PagedKV(memory[:, 0], memory[:, 1], table)
    near_memory = memory[-tail:].clone()
    near = PagedKV(near_memory[:, 0], near_memory[:, 1], table - (pages - tail))
    q = torch.randn(1, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    rope = rope_tables(4096, 128, DEVICE)
    length = torch.tensor([tail * 64], dtype=torch.int32, device=DEVICE)
    shape = dataclasses.replace(LLAMA, num_tokens=1, seqlen_k=tail * 64)
    case = Case(shape, q, q, q, far, length, rope)
    plan = make_plan(case, 1, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    for run in (sparse_decode, sparse_prefill):
        results = [run(q, kv, plan, rope, length, SCALE) for kv in (far, near)]
        assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(
        vote(q, far, length, rope, 9, SCALE)[0], vote(q, near, length, rope, 9, SCALE)[0]
    )
