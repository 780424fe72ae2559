"""Infini-attention: the memory by its closed form, gates at both ends, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from hipcli.engine.config import EngineConfig
from hipcli.engine.errors import ModelError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.loaded import LoadedEngine, _method
from hipcli.engine.methods.compressive import Memory, features
from hipcli.engine.methods.configs import InfiniConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.infini import InfiniMethod, InfiniState
from hipcli.engine.models import ModelFolder
from hipcli.engine.models.gates import FILE, save_gates
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.tokenizer import load_tokenizer
from tests.engine.methods.stores import filled_store, make_runner, pass_at, turned
from tests.engine.methods.test_infllm import answer, read
from tests.engine.models import toy_models
from tests.engine.test_identity import key
from tests.engine.test_sessions import request
from tests.engine.tiny import prefill_logits, random_ids, tiny_model

SEGMENT = 128


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_runner()


def method(gate: float = 0.0, delta: int = 0) -> InfiniMethod:
    made = InfiniMethod(InfiniConfig(segment_tokens=SEGMENT, delta_rule=delta))
    made.own_attention.gates = torch.full((3, 6), gate)
    return made


def test_the_linear_memory_is_a_weighted_mean_of_all_values() -> None:
    torch.manual_seed(1)
    k, v, q = torch.randn(4, 40, 8), torch.randn(4, 40, 8), torch.randn(4, 5, 8)
    memory = Memory.empty((4,), 8, k.device)
    assert torch.equal(memory.read(q), torch.zeros(4, 5, 8))
    for part in (slice(0, 10), slice(10, 30), slice(30, 40)):
        memory = memory.updated(k[:, part], v[:, part], delta=False)
    weights = features(q.double()) @ features(k.double()).transpose(1, 2)
    expected = weights / weights.sum(-1, keepdim=True) @ v.double()
    torch.testing.assert_close(memory.read(q).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_delta_rule_stores_an_association_once() -> None:
    """As the formula stands: the matrix stays, the norm doubles, and the read is halved."""
    torch.manual_seed(2)
    k, v = torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    once = Memory.empty((1,), 8, k.device).updated(k, v, delta=True)
    torch.testing.assert_close(once.read(k), v)
    twice = once.updated(k, v, delta=True)
    torch.testing.assert_close(twice.matrix, once.matrix)
    torch.testing.assert_close(twice.norm, 2 * once.norm)
    torch.testing.assert_close(twice.read(k), v / 2)


def test_closed_gates_are_attention_inside_the_segment(runner: Runner) -> None:
    ids = random_ids(300)
    logits = prefill_logits(runner, method(-40), ids, 300)
    dense = prefill_logits(runner, DenseMethod(), ids, 300)
    torch.testing.assert_close(logits[:SEGMENT], dense[:SEGMENT], rtol=1e-4, atol=1e-4)
    assert (logits[SEGMENT:] - dense[SEGMENT:]).abs().max() > 0.1


@pytest.mark.parametrize("delta", [0, 1])
@pytest.mark.parametrize("gate", [0.7, 40.0])
def test_equals_the_formulas_query_by_query(runner: Runner, gate: float, delta: int) -> None:
    """In fp64; at a gate of 40 nothing but memory is left, which knows no positions."""
    torch.manual_seed(3)
    dim, length = runner.layout.head_dim, 300
    k, v = torch.randn(length, 2, dim), torch.randn(length, 2, dim)
    q = torch.randn(length, runner.num_heads, dim)
    step = pass_at(runner, filled_store(runner, k, v), method(gate, delta), 0)
    out = step.attention.attend(0, q, step)
    part = torch.sigmoid(torch.tensor(gate).double())
    for head in (0, 5):
        keys, values = k[:, head // 3].double(), v[:, head // 3].double()
        matrix, norm = torch.zeros(dim, dim).double(), torch.zeros(dim).double()
        for segment in range(2):
            rows = features(keys[segment * SEGMENT : (segment + 1) * SEGMENT])
            wanted = values[segment * SEGMENT : (segment + 1) * SEGMENT]
            if delta and segment:
                wanted = wanted - rows @ matrix / (rows @ norm)[:, None]
            matrix, norm = matrix + rows.T @ wanted, norm + rows.sum(0)
        for position in (256, 299):
            query = features(q[position, head].double())
            recalled = query @ matrix / (query @ norm)
            inside = torch.arange(256, position + 1)
            near = turned(keys[inside], inside - 256)
            logits = near @ turned(q[position, head], position - 256) * step.softmax_scale
            local = logits.softmax(0) @ values[inside]
            expected = part * recalled + (1 - part) * local
            torch.testing.assert_close(out[position, head].double(), expected, rtol=1e-4, atol=1e-5)


def test_memories_do_not_grow(runner: Runner) -> None:
    store = runner.new_store(1200)
    reading = PrefillPass(method())
    for start in range(0, 1200, 300):
        ids = random_ids(300, seed=start)
        runner.forward(ids, StepInput(store, runner.tables, reading, start))
    past = store.companion.layers[0]
    assert past.segments == 1199 // SEGMENT
    assert past.memory.matrix.shape == (2, 16, 16) and past.memory.norm.shape == (2, 16)


def test_memories_are_made_again_after_cuts_and_from_pages(runner: Runner) -> None:
    """A rewind, a cut into an earlier segment, and a store of which only the pages are known."""
    ids, made = random_ids(700), method(0.5, delta=1)
    store = runner.new_store(700)
    runner.forward(ids[:450], StepInput(store, runner.tables, PrefillPass(made), 0))
    tail, rows = store.tail(), []

    def answer(start: int) -> torch.Tensor:
        logits = []
        for position in range(start, 520):
            step = StepInput(store, runner.tables, AnswerPass(made), position)
            logits.append(runner.logits(ids[position : position + 1], step)[-1])
        return torch.stack(logits)

    rows.append(answer(450))
    store.rewind(tail)
    rows.append(answer(450))
    store.rewind(tail)
    # Into an earlier segment.
    store.truncate(380)
    rows.append(answer(380)[70:])
    store.rewind(tail)
    store.companion = None
    rows.append(answer(450))
    assert isinstance(store.companion, InfiniState)
    torch.testing.assert_close(rows[1], rows[0], rtol=0, atol=0)
    # From here on keys come from tokens that were run one by one.
    for row in rows[2:]:
        torch.testing.assert_close(row, rows[0], rtol=1e-4, atol=1e-4)


def test_a_resumed_session_answers_as_the_first_time(runner: Runner, tmp_path: Path) -> None:
    ask = request(tmp_path, length=700, answer="attend")
    first, _ = read(runner, ask, method())
    expected = answer(runner, first, ask, method())
    warm, _ = read(runner, ask, method())
    assert warm.session.reused
    assert answer(runner, warm, ask, method()) == expected


def load(folder: Path, **config) -> LoadedEngine:
    settings = EngineConfig(models_dir=folder, device="cpu", method="infini", **config)
    model = ModelFolder("toy", folder, "local", "safetensors")
    return LoadedEngine.load(settings, model, load_tokenizer(folder))


def test_a_checkpoint_without_gates_is_refused(tmp_path: Path) -> None:
    folder = toy_models.llama(tmp_path / "llama")
    with pytest.raises(ModelError, match="no gates for the method infini"):
        load(folder)
    save_gates(folder, torch.zeros(0, 0))
    with pytest.raises(ModelError, match="gates for"):
        load(folder)
    (folder / FILE).write_bytes(b"not gates")
    with pytest.raises(ModelError, match="no usable gates"):
        load(folder)


def test_gates_are_part_of_a_sessions_identity(tmp_path: Path) -> None:
    folder = toy_models.llama(tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    shape = (config["num_hidden_layers"], config["num_attention_heads"])
    keys = []
    for number, gate in enumerate((0.0, 1.0)):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        save_gates(copy, torch.full(shape, gate))
        assert float(load(copy).method.own_attention.gates[0, 0]) == gate
        keys.append(key(copy, method="infini"))
        keys.append(key(copy, method="infini", method_settings={"delta_rule": 0}))
    assert len(set(keys)) == 4


def test_without_an_engine_gates_are_missed_when_it_attends(runner: Runner) -> None:
    with pytest.raises(ModelError, match="needs gates"):
        prefill_logits(runner, InfiniMethod(), random_ids(20), 20)


def test_pages_in_fp8_are_refused() -> None:
    quantised = Runner(tiny_model("llama"), "fp8_e4m3", backend="reference")
    config = EngineConfig(models_dir=Path("."), method="infllm", kv_dtype="fp8_e4m3")
    with pytest.raises(UsageError, match="infllm does not attend keys and values in fp8"):
        _method(config, quantised, ModelFolder("toy", Path("."), "local", "safetensors"))
