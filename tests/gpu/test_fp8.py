"""Pages in fp8 on a GPU: kernels against their references, the engine's store, graphs, sessions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.paging import dequantise
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_step import triton_impl as step_impl
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, SelectionSizes
from hipcli.kernels.vote import vote
from tests.engine.test_sessions import read, request
from tests.engine.tiny import prefill_logits, random_ids
from tests.gpu import budgets
from tests.gpu.test_engine import METHODS, SMALL, assert_graph_equals_eager, relative
from tests.gpu.test_kernels import (
    DEVICE,
    LLAMA,
    SCALE,
    SHAPES,
    assert_attention,
    assert_votes,
    gpu_case,
)
from tests.gpu.wide import wide_model
from tests.kernels.builders import Case, make_plan, paged_codes, quantised, written
from tests.kernels.oracles import relative_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="fp8 needs compute capability 8.9",
    ),
]
LENGTH = 900


def widened(case: Case) -> Case:
    """The case with what its fp8 pages hold in pages of its dtype, which hold it exactly."""
    kv = case.kv
    k_pages, v_pages = (
        dequantise(pages, scales, case.q.dtype)
        for pages, scales in ((kv.k_pages, kv.k_scales), (kv.v_pages, kv.v_scales))
    )
    return dataclasses.replace(case, kv=PagedKV(k_pages, v_pages, kv.page_table))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("run, size", [(sparse_prefill, 64), (sparse_decode, 1)])
def test_attention(run, size, name, dtype):
    shape = SHAPES[name]
    shape = dataclasses.replace(shape, num_tokens=3) if size == 1 else shape
    case = quantised(gpu_case(shape, dtype))
    plan = make_plan(
        case, size, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16
    )
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    wide = widened(case)
    truth = run(case.q, wide.kv, *rest, backend="reference")
    assert_attention(wide, plan, run(case.q, case.kv, *rest), truth)


@pytest.mark.parametrize("num_tokens", [1, 7, 16, 64])
@pytest.mark.parametrize("name", ["llama", "smollm", "wide"])
def test_vote(name, num_tokens):
    shape = dataclasses.replace(SHAPES[name], num_tokens=num_tokens, seqlen_k=5000)
    assert_votes(quantised(gpu_case(shape)))


@pytest.mark.parametrize("num_tokens, size, stride", [(1, 1, 1), (100, 64, 4)])
def test_block_scores(num_tokens, size, stride):
    shape = dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=8000)
    case = quantised(gpu_case(shape))
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
    by_torch = budgets.block_scores(widened(case), candidates, 1024, (size, 16, stride))
    allowed = budgets.budget(by_torch, truth, case.q.dtype)
    assert relative_error(scores[finite], truth[finite]) < allowed


@pytest.mark.parametrize("index_dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("num_tokens, size, stride", [(1, 1, 1), (200, 64, 4)])
def test_selection_step(num_tokens, size, stride, index_dtype):
    """The fused step chooses exactly what its operators choose."""
    case = quantised(gpu_case(dataclasses.replace(LLAMA, num_tokens=num_tokens, seqlen_k=20000)))
    blocks = -(-num_tokens // size)
    starts = torch.full((blocks,), 18688, dtype=torch.int32, device=DEVICE)
    sizes = SelectionSizes(1024, size, 16, stride, 256, candidate_pages=64, num_selected=100)
    pages = (case.kv.k_pages, case.kv.page_table)
    indices = []
    for _ in range(2):
        shape = (8, len(case.kv.page_table), 128)
        index = new_page_index("bounds", shape, 64, dtype=index_dtype, device=DEVICE)
        before = case.seqlen_k - num_tokens
        update_page_index_(index, *pages, before, int(before), k_scales=case.kv.k_scales)
        indices.append(index)
    update_page_index_(indices[0], *pages, case.seqlen_k, num_tokens, k_scales=case.kv.k_scales)
    scores = score_pages(case.q, indices[0], starts, case.rope, 1024, size, stride, 256)
    best = select_blocks(scores, 64)
    scores = score_blocks(case.q, case.kv, best, case.rope, 1024, size, 16, stride)
    truth = select_blocks(scores, 100, best)
    for _ in range(10):
        chosen = step_impl.launch(
            case.q, case.kv, indices[1], starts, case.seqlen_k, case.rope, sizes
        )
        assert torch.equal(chosen, truth)
    assert torch.equal(indices[0].summaries.float(), indices[1].summaries.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("calls", [[1000], [960, 40], [100, 1, 1, 61, 837], [1] * 150])
def test_quantising_is_the_references(calls, dtype):
    case = gpu_case(dataclasses.replace(LLAMA, seqlen_k=sum(calls)), dtype)
    ramp = torch.linspace(-9, 9, sum(calls), device=DEVICE).exp2()[:, None, None].to(dtype)
    case = dataclasses.replace(case, keys=case.keys * ramp, values=case.values / ramp)
    pages = [written(case, calls, backend) for backend in ("reference", "triton")]
    for name in ("k", "v"):
        codes, scales = (
            [getattr(kv, f"{name}_{what}").float().nan_to_num(-1) for kv in pages]
            for what in ("pages", "scales")
        )
        assert torch.equal(*scales)
        assert torch.equal(*codes)


def test_a_graph_appends_wherever_the_device_says():
    case = gpu_case(dataclasses.replace(LLAMA, seqlen_k=200))
    kv = paged_codes(*case.kv.k_pages.shape, case.kv.page_table, DEVICE)
    again = paged_codes(*case.kv.k_pages.shape, case.kv.page_table, DEVICE)
    length = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    k, v = (torch.zeros(1, 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    length.fill_(1)
    quantise_pages_(kv, k, v, length)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        quantise_pages_(kv, k, v, length)
    for token in range(200):
        length.fill_(token + 1)
        k.copy_(case.keys[token : token + 1])
        v.copy_(case.values[token : token + 1])
        graph.replay()
        quantise_pages_(again, k, v, length, backend="reference")
    slots = kv.page_table[:3].long()
    for one, other in ((kv.k_pages, again.k_pages), (kv.v_pages, again.v_pages)):
        assert torch.equal(one.float()[slots], other.float()[slots])


def test_addresses_beyond_four_gigabytes():
    """Slots whose codes lie further than a 32-bit number reaches."""
    pages, tail = 33200, 40
    layout = KVLayout(1, 8, 128, torch.bfloat16, kv_dtype="fp8_e4m3")
    store = KVStore(layout, pages * 64, "triton", DEVICE)
    keys, values = (
        torch.randn(tail * 64, 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)
    )
    store.append(0, (pages - tail) * 64, keys, values)
    near = KVStore(layout, tail * 64, "triton", DEVICE)
    near.append(0, 0, keys, values)
    table = store.kv[0].page_table[-tail:].contiguous()
    far = dataclasses.replace(store.kv[0], page_table=table)
    case = gpu_case(dataclasses.replace(LLAMA, num_tokens=1, seqlen_k=tail * 64))
    plan = make_plan(case, 1, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16)
    for run in (sparse_decode, sparse_prefill):
        rest = (plan, case.rope, case.seqlen_k, SCALE)
        assert torch.equal(run(case.q, far, *rest)[0], run(case.q, near.kv[0], *rest)[0])
    rest = (case.seqlen_k, case.rope, 9, SCALE)
    assert torch.equal(vote(case.q, far, *rest)[0], vote(case.q, near.kv[0], *rest)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*METHODS, "given pages"])
def test_graph_equals_eager(name, dtype) -> None:
    assert_graph_equals_eager(Runner(wide_model(dtype).to("cuda"), "fp8_e4m3"), name)


@pytest.mark.parametrize("name", ["hip", "dense"])
def test_chunks_do_not_matter(name) -> None:
    runner = Runner(wide_model(torch.float32).to("cuda"), "fp8_e4m3")
    ids = random_ids(LENGTH)
    whole = prefill_logits(runner, METHODS[name](), ids, LENGTH)
    for chunk in (256, 64):
        assert relative(prefill_logits(runner, METHODS[name](), ids, chunk), whole) < 1e-3


def test_logits_are_the_references() -> None:
    """Triton on the GPU against the reference kernels there, in fp32."""
    logits = []
    for backend in ("reference", "triton"):
        runner = Runner(wide_model(torch.float32).to("cuda"), "fp8_e4m3", backend=backend)
        logits.append(prefill_logits(runner, METHODS["hip"](), random_ids(LENGTH), 256))
    assert relative(logits[1], logits[0]) < 1e-3


def test_decoding_is_reading() -> None:
    """A page written token by token is that of a chunk, but for its tiniest values."""
    runner = Runner(wide_model(torch.float32).to("cuda"), "fp8_e4m3")
    ids = random_ids(LENGTH + 100)
    truth = prefill_logits(runner, DenseMethod(), ids, LENGTH + 100)[LENGTH - 1 : -1]
    store = runner.new_store(LENGTH + 100)
    step = StepInput(store, runner.tables, PrefillPass(DenseMethod()), 0)
    rows = [runner.logits(ids[:LENGTH], step)[-1]]
    decoder = DeviceDecoder(runner, store, AnswerPass(DenseMethod()))
    for token in ids[LENGTH : LENGTH + 99]:
        decoder.feed(token)
        decoder.step()
        rows.append(decoder.logits.clone())
    assert relative(torch.stack(rows), truth) < 2e-3


def test_saved_pages_are_those_on_the_gpu(tmp_path: Path) -> None:
    """To the bit, scales included, with several chunks under way at once."""
    runner = Runner(wide_model(torch.bfloat16).to("cuda"), "fp8_e4m3")
    written, _ = read(runner, request(tmp_path))
    loaded, _ = read(runner, request(tmp_path))
    assert loaded.session.reused
    full = loaded.store.length // 64
    for layer in range(runner.layout.num_layers):
        for one, other in zip(
            written.store.tokens(layer, LENGTH), loaded.store.tokens(layer, LENGTH), strict=True
        ):
            assert torch.equal(one, other)
        scales = (written.store.scales[layer], loaded.store.scales[layer])
        assert torch.equal(scales[0][: full + 1], scales[1][: full + 1])
        assert torch.equal(
            written.store.index[layer].summaries[:, :full],
            loaded.store.index[layer].summaries[:, :full],
        )


def test_fp8_answers_as_bf16_does_nearly() -> None:
    """How far quantising moves the logits of a random model with sharp attention."""
    ids = random_ids(LENGTH)
    model = wide_model(torch.bfloat16).to("cuda")
    plain = prefill_logits(Runner(model), HipMethod(SMALL), ids, 256)
    model = wide_model(torch.bfloat16).to("cuda")
    logits = prefill_logits(Runner(model, "fp8_e4m3"), HipMethod(SMALL), ids, 256)
    assert 0 < relative(logits, plain) < 0.3
