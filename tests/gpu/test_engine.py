"""The engine on a GPU: the CPU's logits, graphs equal to eager steps, sessions for both."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.answering.decoding import DeviceDecoder, generate
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipConfig, QuestConfig, WindowConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.methods.quest import QuestMethod
from hipcli.engine.methods.window import WindowMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from tests.engine.test_sessions import read, request
from tests.engine.tiny import prefill_logits, random_ids, stock_logits
from tests.gpu.wide import wide_model

pytestmark = pytest.mark.gpu
LENGTH = 900
SMALL = HipConfig(
    sink_tokens=64,
    window_tokens=128,
    budget_tokens=128,
    prefill_budget_tokens=128,
    dense_tokens=0,
    candidate_tokens=256,
    query_distance_tokens=200,
)
COVERING = HipConfig(
    sink_tokens=64,
    window_tokens=64,
    dense_tokens=0,
    prefill_budget_tokens=1024,
    budget_tokens=1024,
)
METHODS = {
    "dense": DenseMethod,
    "hip": lambda: HipMethod(SMALL),
    "quest": lambda: QuestMethod(QuestConfig(64, 128, 128, 200)),
    "window": lambda: WindowMethod(WindowConfig(sink_tokens=64, window_tokens=128)),
}


def runners(dtype: torch.dtype) -> tuple[Runner, Runner]:
    """The same model on the CPU and on the GPU."""
    model = wide_model(dtype)
    return Runner(copy.deepcopy(model)), Runner(model.to("cuda"))


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value.cpu().double() - truth.cpu().double()).norm() / truth.cpu().double().norm())


@pytest.mark.parametrize("method", [DenseMethod, lambda: HipMethod(COVERING)])
@pytest.mark.parametrize("chunk", [LENGTH, 256, 100])
def test_fp32_equals_stock(method, chunk) -> None:
    model = wide_model(torch.float32)
    ids = random_ids(LENGTH)
    stock = stock_logits(model, ids)
    logits = prefill_logits(Runner(model.to("cuda")), method(), ids, chunk)
    assert relative(logits, stock) < 1e-4


@pytest.mark.parametrize("method", [DenseMethod, lambda: HipMethod(COVERING)])
@pytest.mark.parametrize("chunk", [LENGTH, 256])
def test_bf16_is_as_close_as_stock_bf16(method, chunk) -> None:
    model = wide_model(torch.float32)
    ids = random_ids(LENGTH)
    exact = stock_logits(model, ids)
    low = copy.deepcopy(model).to(torch.bfloat16).to("cuda")
    stock = relative(stock_logits(low, ids.to("cuda")), exact)
    logits = prefill_logits(Runner(low), method(), ids, chunk)
    assert relative(logits, exact) < 1.5 * stock


@pytest.mark.parametrize("name", ["hip", "quest", "window"])
def test_sparse_fp32_equals_the_cpu_engine(name) -> None:
    host, gpu = runners(torch.float32)
    ids = random_ids(LENGTH)
    expected = prefill_logits(host, METHODS[name](), ids, 256)
    assert relative(prefill_logits(gpu, METHODS[name](), ids, 256), expected) < 1e-3


def prompt(runner: Runner, method, capacity: int):
    ids = random_ids(LENGTH)
    store = runner.new_store(capacity)
    step = StepInput(store, runner.tables, PrefillPass(method), 0)
    logits = runner.logits(ids, step)[-1]
    method.reset()
    return store, logits


@pytest.mark.parametrize("name", METHODS)
def test_generated_tokens_are_the_cpus(name) -> None:
    tokens = []
    for runner in runners(torch.float32):
        method = METHODS[name]()
        store, logits = prompt(runner, method, LENGTH + 100)
        sampler = Sampler(0, 0)
        tokens.append(list(generate(runner, store, AnswerPass(method), sampler, logits, 100)))
    assert tokens[0] == tokens[1]


def assert_graph_equals_eager(runner: Runner, name: str) -> None:
    """Logits of every step, over borders of pages and all kinds of steps."""
    ids = random_ids(100, seed=3)
    rows = []
    for graphs in (True, False):
        method = METHODS.get(name, METHODS["window"])()
        store, _ = prompt(runner, method, LENGTH + 100)
        pages = torch.tensor([0, 2, 3, 7, 12]) if name == "given pages" else None
        decoder = DeviceDecoder(runner, store, AnswerPass(method, pages), graphs=graphs)
        rows.append([])
        for token in ids:
            decoder.feed(token)
            decoder.step()
            rows[-1].append(decoder.logits.clone())
    assert relative(torch.stack(rows[0]), torch.stack(rows[1])) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*METHODS, "given pages"])
def test_graph_equals_eager(name, dtype) -> None:
    assert_graph_equals_eager(Runner(wide_model(dtype).to("cuda")), name)


@pytest.mark.parametrize("name", ["hip", "given pages"])
def test_graph_decode_equals_the_passes(name) -> None:
    """The decoder against tokens run through `AnswerPass`, one by one."""
    runner = Runner(wide_model(torch.float32).to("cuda"))
    ids = random_ids(80, seed=4)
    pages = torch.tensor([2, 3, 7]) if name == "given pages" else None
    method = HipMethod(SMALL)
    store, _ = prompt(runner, method, LENGTH + 80)
    attention = AnswerPass(method, pages)
    expected = []
    for position, token in enumerate(ids, LENGTH):
        step = StepInput(store, runner.tables, attention, position)
        expected.append(runner.logits(token.view(1), step)[-1])
    store, _ = prompt(runner, method, LENGTH + 80)
    decoder = DeviceDecoder(runner, store, AnswerPass(method, pages))
    for token, row in zip(ids, expected, strict=True):
        decoder.feed(token)
        decoder.step()
        assert relative(decoder.logits, row) < 1e-4


def answer(runner: Runner, context, ask) -> list[int]:
    answerer = Answerer(
        runner,
        HipMethod(SMALL),
        context.store,
        ask,
        budget_tokens=128,
        vote_distance_tokens=200,
        separator_ids=[11],
        stop_ids=frozenset(),
    )
    return list(answerer.tokens())


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("length", [127, 900])
@pytest.mark.parametrize("writer", [0, 1])
def test_sessions_serve_both(tmp_path: Path, writer: int, length: int, mode: str) -> None:
    both = runners(torch.float32)
    ask = request(tmp_path, length=length, answer=mode)
    first, _ = read(both[writer], ask)
    expected = answer(both[writer], first, ask)
    warm, _ = read(both[1 - writer], ask)
    assert warm.session.reused and warm.cached_tokens == length
    assert answer(both[1 - writer], warm, ask) == expected


def test_saved_pages_are_those_on_the_gpu(tmp_path: Path) -> None:
    """In bf16, to the bit, with several chunks under way at once."""
    _, gpu = runners(torch.bfloat16)
    written, _ = read(gpu, request(tmp_path))
    loaded, _ = read(gpu, request(tmp_path))
    assert loaded.session.reused
    for layer in range(gpu.layout.num_layers):
        assert torch.equal(written.store.pages[layer], loaded.store.pages[layer])
        full = loaded.store.length // 64
        assert torch.equal(
            written.store.index[layer].summaries[:, :full],
            loaded.store.index[layer].summaries[:, :full],
        )


def test_sampling_in_a_graph_is_seeded() -> None:
    runner = Runner(wide_model(torch.float32).to("cuda"))
    tokens = []
    for seed in (5, 5, 6):
        method = METHODS["hip"]()
        store, logits = prompt(runner, method, LENGTH + 40)
        sampler = Sampler(1.0, seed)
        tokens.append(list(generate(runner, store, AnswerPass(method), sampler, logits, 40)))
    assert tokens[0] == tokens[1] != tokens[2]
