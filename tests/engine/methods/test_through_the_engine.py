"""Every method from a request to an answer: several questions about one reading, and sessions."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.events import Result
from hipcli.engine.methods import METHODS, accepted
from hipcli.engine.models.gates import save_gates
from hipcli.engine.request import AskRequest
from tests.engine.evaluation.tiny import tiny_engine

SMALL = {
    "sink_tokens": 64,
    "window_tokens": 128,
    "budget_tokens": 128,
    "prefill_budget_tokens": 128,
    "dense_tokens": 0,
    "candidate_tokens": 256,
    "segment_tokens": 128,
}
IDS = np.random.default_rng(1).integers(5, 200, 500).astype(np.int32)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    made = tiny_engine(tmp_path_factory.mktemp("model"))
    config = json.loads((made.folder.path / "config.json").read_text())
    shape = (config["num_hidden_layers"], config["num_attention_heads"])
    save_gates(made.folder.path, torch.zeros(shape))
    return made


def ask(question: list[int], answer: str, cache: CacheConfig) -> AskRequest:
    return AskRequest(
        context_ids=IDS,
        question_ids=question,
        prefix_tokens=3,
        answer=answer,
        generation=GenerationConfig(max_new_tokens=6),
        cache=cache,
    )


def results(engine: Engine, *requests: AskRequest) -> list[Result]:
    return [event for event in engine.ask_each(requests) if isinstance(event, Result)]


@pytest.mark.parametrize("name", METHODS)
def test_questions_asked_together_alone_or_later_are_answered_alike(
    engine: Engine, tmp_path: Path, name: str
) -> None:
    method = engine.with_method(name, accepted(name, SMALL))
    nowhere, saved = CacheConfig(None), CacheConfig(tmp_path)
    requests = [ask([9, 8, 7] * 30, "share", nowhere), ask([20, 21], "attend", nowhere)]
    together = results(method, *requests)
    (alone,) = results(method, requests[-1])
    assert alone.answer == together[-1].answer and alone.evidence == together[-1].evidence
    # Read into a session, then asked from it.
    for reused in (False, True):
        last = dataclasses.replace(requests[-1], cache=saved)
        (result,) = results(method, last)
        assert result.session.reused == reused
        assert result.answer == together[-1].answer
