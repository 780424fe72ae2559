"""Tiered stores on a GPU: what all pages on the device give, eager and in CUDA graphs."""

from __future__ import annotations

import pytest
import torch

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.benchmarks.tier_checks import keys_alone
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import QuestConfig
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.methods.quest import QuestMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from tests.engine.test_sessions import answer, read, request
from tests.engine.tiers import TieredRunner
from tests.engine.tiny import random_ids
from tests.gpu.test_engine import SMALL
from tests.gpu.wide import wide_model

pytestmark = pytest.mark.gpu
LENGTH, STEPS = 900, 150
METHODS = {
    "hip": lambda: HipMethod(SMALL),
    "quest": lambda: QuestMethod(QuestConfig(64, 128, 128, 200)),
    "given pages": lambda: HipMethod(SMALL),
}
KV = [(torch.float32, "auto"), (torch.bfloat16, "auto"), (torch.bfloat16, "fp8_e4m3")]
# Sinks, windows, a chunk and candidates just fit; a few more.
SLOTS = (12, 16)


def runners(dtype: torch.dtype, kv_dtype: str) -> list[Runner]:
    """The same model with all pages on the device, and with few."""
    made = [Runner(wide_model(dtype).to("cuda"), kv_dtype)]
    for slots in SLOTS:
        model = wide_model(dtype).to("cuda")
        made.append(TieredRunner(model, slots, kv_dtype=kv_dtype, backend="triton"))
    return made


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.parametrize("dtype, kv_dtype", KV)
@pytest.mark.parametrize("name", METHODS)
def test_graph_eager_and_device_are_one(name: str, dtype: torch.dtype, kv_dtype: str) -> None:
    """Logits of reading and of every step of an answer, over borders of pages."""
    ids = random_ids(LENGTH + STEPS)
    expected = None
    for runner in runners(dtype, kv_dtype):
        method = METHODS[name]()
        store = runner.new_store(LENGTH + STEPS)
        rows = []
        for start in range(0, LENGTH, 128):
            part = ids[start : min(start + 128, LENGTH)]
            step = StepInput(store, runner.tables, PrefillPass(method), start)
            rows.append(runner.logits(part, step, keep=len(part)))
        tail = store.tail()
        for graphs in (False, True):
            store.rewind(tail)
            keys_alone(store)
            method.reset()
            pages = torch.tensor([1, 2, 5, 9]) if name == "given pages" else None
            answering = AnswerPass(method, pages)
            decoder = DeviceDecoder(runner, store, answering, graphs=graphs, staggered=True)
            for token in ids[LENGTH:]:
                decoder.feed(token)
                decoder.step()
                rows.append(decoder.logits.clone()[None])
        logits = torch.cat(rows)
        eager, graph = logits[LENGTH : LENGTH + STEPS], logits[LENGTH + STEPS :]
        assert relative(graph, eager) < 1e-6
        expected = logits if expected is None else expected
        # Where queries come in other pieces a product may round otherwise.
        assert relative(logits, expected) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("mode", ["attend", "share"])
def test_answers_and_sessions(tmp_path, mode: str) -> None:
    """Read, answered and saved by a tiered store; resumed by both kinds."""
    whole = Runner(wide_model(torch.float32).to("cuda"))
    few = TieredRunner(wide_model(torch.float32).to("cuda"), 24, backend="triton")
    asked = request(tmp_path, answer=mode)
    context, _ = read(few, asked)
    expected = answer(few, context, asked)
    for runner in (whole, few):
        warm, _ = read(runner, asked)
        assert warm.session.reused
        assert answer(runner, warm, asked) == expected
