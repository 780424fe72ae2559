"""What a pass computes does not depend on how many pages the device holds."""

import dataclasses
from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.decoding import DeviceDecoder, generate
from hipcli.engine.answering.phases import Staggered
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.benchmarks.tier_checks import keys_alone
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Schedule
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.passes.pieces import attend_by_pieces
from hipcli.engine.passes.tiers import check_method, least_room
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.reading.worth import page_worth
from hipcli.engine.request import AskRequest
from hipcli.engine.store.tiered_store import TieredStore
from tests.engine.test_method_laws import SPARSE
from tests.engine.test_sessions import CHUNK, IDENTITY, answer, request
from tests.engine.tiers import TieredRunner
from tests.engine.tiny import prefill_logits, random_ids, tiny_hip, tiny_model
from tests.gpu.wide import wide_model

METHODS = {name: SPARSE[name] for name in ("hip", "quest", "window")} | {"dense": DenseMethod}
LENGTH = 900
# Sinks, window, a chunk of three pages, what one query block selects, two to spare; all.
BUDGETS = (11, 20)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def device(model: torch.nn.Module) -> Runner:
    return Runner(model, backend="reference")


@pytest.fixture(scope="module")
def tiered(model: torch.nn.Module) -> dict[int, TieredRunner]:
    made = {}
    for slots in BUDGETS:
        made[slots] = TieredRunner(tiny_model("llama"), slots)
    return made


def after_prompt(runner: Runner, method, length: int, capacity: int):
    """A store with a prompt, and the logits of the token after it."""
    ids = random_ids(length)
    store = runner.new_store(capacity)
    for start in range(0, length, 128):
        part = ids[start : start + 128]
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        logits = runner.logits(part, step)[-1]
    method.reset()
    return store, logits


def read(runner: Runner, asked: AskRequest) -> Context:
    """A context, with room behind it for the passages of a second round."""
    stream = ContextReader(runner, tiny_hip(), asked, IDENTITY, CHUNK, 200).read()
    while True:
        try:
            next(stream)
        except StopIteration as stop:
            return stop.value


@pytest.mark.parametrize("slots", BUDGETS)
@pytest.mark.parametrize("name", METHODS)
def test_reading_is_that_of_the_device(device, tiered, name: str, slots: int) -> None:
    ids = random_ids(LENGTH)
    for chunk in (128, 100) if slots == BUDGETS[0] else (192,):
        expected = prefill_logits(device, METHODS[name](), ids, chunk)
        found = prefill_logits(tiered[slots], METHODS[name](), ids, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*METHODS, "given pages"])
@pytest.mark.parametrize("slots, prompt", [(11, 150), (11, 600), (20, 600)])
def test_answers_are_those_of_the_device(device, tiered, name, slots, prompt) -> None:
    """Across the borders of pages, of the window and of dense attention."""
    tokens, pages = [], None
    for runner in (device, tiered[slots]):
        method = METHODS.get(name, tiny_hip)()
        store, logits = after_prompt(runner, method, prompt, prompt + 200)
        if name == "given pages":
            pages = torch.tensor([0, 3, 4, 7])
        answering, sampler = AnswerPass(method, pages), Sampler(0, 0)
        if name in ("hip", "quest"):
            # Layers that take turns select at other steps than layers that select together.
            decoder = DeviceDecoder(runner, store, answering, staggered=True)
            tokens.append(list(decoder.tokens(logits, sampler, 90)))
        else:
            tokens.append(list(generate(runner, store, answering, sampler, logits, 90)))
        assert store.length == prompt + 89
    assert tokens[0] == tokens[1]


def test_what_is_attended_has_values(device, tiered) -> None:
    """Candidates come with keys alone; blocks among them are chosen anew every four steps."""
    rows, prompt = [], 1500
    for runner in (device, tiered[BUDGETS[0]]):
        store, _ = after_prompt(runner, tiny_hip(), prompt, prompt + 80)
        keys_alone(store)
        decoder = DeviceDecoder(runner, store, AnswerPass(tiny_hip()), staggered=True)
        before, steps = store.traffic, []
        for token in random_ids(80, seed=1):
            decoder.feed(token)
            decoder.step()
            steps.append(decoder.logits.clone())
        rows.append(torch.stack(steps))
    torch.testing.assert_close(rows[1], rows[0], rtol=1e-4, atol=1e-4)
    assert store.traffic.missed_pages > before.missed_pages


def test_layers_choose_together_where_graphs_cannot_fetch(device, tiered, monkeypatch) -> None:
    """Then the answer is that of a store on the device, step by step."""
    monkeypatch.setattr(TieredStore, "fetches_in_graphs", False)
    tokens = []
    for runner in (device, tiered[BUDGETS[0]]):
        store, logits = after_prompt(runner, tiny_hip(), 600, 800)
        answering, sampler = AnswerPass(tiny_hip()), Sampler(0, 0)
        tokens.append(list(generate(runner, store, answering, sampler, logits, 120)))
    assert tokens[0] == tokens[1]


@pytest.mark.slow
def test_a_long_answer(device, tiered) -> None:
    """Its own pages leave the window, make way and are wanted again."""
    tokens = []
    for runner in (device, tiered[BUDGETS[0]]):
        store, logits = after_prompt(runner, tiny_hip(), 400, 2700)
        decoder = DeviceDecoder(runner, store, AnswerPass(tiny_hip()), staggered=True)
        tokens.append(list(decoder.tokens(logits, Sampler(1.0, 3), 2200)))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"answer": "share"},
        {"answer": "attend"},
        {"answer": "reread"},
        {"answer": "attend", "rounds": 0},
        {"answer": "share", "rounds": 2},
    ],
)
def test_all_ways_to_answer(device, tmp_path: Path, changes: dict) -> None:
    """Cold, and from the session that a store on the device wrote."""
    asked = dataclasses.replace(request(tmp_path), **changes)
    generation = GenerationConfig(max_new_tokens=40)
    asked = dataclasses.replace(asked, generation=generation)
    plain = dataclasses.replace(asked, cache=CacheConfig(None))
    if changes.get("rounds") == 0:
        # Layers that take turns select at other steps than layers that select together.
        device = TieredRunner(tiny_model("llama"), 40)
    expected = answer(device, read(device, plain), plain)
    for slots in (20, 24):
        runner = TieredRunner(tiny_model("llama"), slots)
        assert answer(runner, read(runner, plain), plain) == expected
        context = read(runner, asked)
        assert answer(runner, context, asked) == expected
    warm = read(device, asked)
    assert warm.session.reused
    assert answer(device, warm, asked) == expected


@pytest.mark.parametrize("cached", [True, False])
def test_pruned_contexts(device, tmp_path: Path, cached: bool) -> None:
    asked = request(tmp_path, cache=CacheConfig(tmp_path if cached else None, keep=0.6))
    expected = None
    for place, runner in (("a", device), ("b", TieredRunner(tiny_model("llama"), 20))):
        cache = dataclasses.replace(asked.cache, directory=tmp_path / place if cached else None)
        mine = dataclasses.replace(asked, cache=cache)
        for _ in range(2):
            found = answer(runner, read(runner, mine), mine)
            expected = expected or found
            assert found == expected


def test_worth_is_that_of_the_device(device, tiered) -> None:
    worth = []
    for runner in (device, tiered[BUDGETS[0]]):
        store, _ = after_prompt(runner, tiny_hip(), LENGTH, LENGTH)
        worth.append(torch.from_numpy(page_worth(store)))
    torch.testing.assert_close(worth[1], worth[0], rtol=1e-4, atol=1e-4)


def test_dense_attention_by_pieces(device, tiered) -> None:
    runner = tiered[BUDGETS[0]]
    store, _ = after_prompt(runner, tiny_hip(), 700, 700)
    whole, _ = after_prompt(device, tiny_hip(), 700, 700)
    q = torch.randn(70, runner.num_heads, runner.layout.head_dim)
    found, expected = (
        attend_by_pieces(
            1, q, StepInput(s, runner.tables, PrefillPass(DenseMethod()), 630, 0.2), 630
        )
        for s in (store, whole)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    step = StepInput(whole, device.tables, PrefillPass(DenseMethod()), 630, 0.2)
    torch.testing.assert_close(found, step.attention.attend(1, q, step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["hip-paper", "infllm", "reattention"])
def test_methods_that_read_everything_are_refused(tiered, name: str) -> None:
    with pytest.raises(UsageError, match="do not fit the device"):
        check_method(SPARSE[name](), tiered[11].new_store(100))


def test_a_query_without_room_is_refused() -> None:
    runner = TieredRunner(tiny_model("llama"), 9)
    method = tiny_hip()
    assert least_room(method, 128) == 4
    store, logits = after_prompt(runner, method, LENGTH, LENGTH + 20)
    given = AnswerPass(method, torch.arange(1, 10))
    step = StepInput(store, runner.tables, given, LENGTH)
    with pytest.raises(DoesNotFitError, match="has room for"):
        runner.logits(torch.tensor([3]), step)


def test_layers_take_turns() -> None:
    phases = Staggered(Schedule(page_steps=4, block_steps=2), num_layers=6)
    assert phases.next(100, 0).layers == ("keep",) * 6
    first = phases.next(101, 64)
    assert first.layers == ("pages",) * 6
    steps = [phases.next(102 + step, 64) for step in range(8)]
    for layer in range(6):
        for step, phase in enumerate(steps, 1):
            turn = (step + layer) % 4
            assert phase.layers[layer] == ("pages", "keep", "blocks", "keep")[turn]
    assert len({phase.name for phase in steps}) == 4
    assert HipMethod().schedule().page_steps == 16


def test_triton_in_its_interpreter() -> None:
    """The calls of the GPU kernels: tables of each KV head, slabs by their addresses."""
    config = HipConfig(
        sink_tokens=64,
        window_tokens=64,
        budget_tokens=64,
        prefill_budget_tokens=64,
        dense_tokens=0,
        candidate_tokens=64,
        query_distance_tokens=100,
    )
    results = []
    for slots, backend in ((12, "reference"), (7, "triton")):
        method = HipMethod(config)
        runner = TieredRunner(wide_model(torch.float32, layers=1), slots, backend=backend)
        store, logits = after_prompt(runner, method, 500, 510)
        for page in range(1, 6):
            # Each page goes through the slots once, and others make way.
            store.fetch(0, torch.full((2, 1), page, dtype=torch.int32))
        answering, sampler = AnswerPass(method), Sampler(0, 0)
        results.append((logits, list(generate(runner, store, answering, sampler, logits, 4))))
    assert store.traffic.missed_pages > 0
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=1e-4)
    assert results[1][1] == results[0][1]
