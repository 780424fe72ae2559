"""The trainable demo: it trains what hip runs, and its gates learn."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "infini.py"
    spec = importlib.util.spec_from_file_location("infini_demo", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look themselves up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_questions_follow_their_facts_in_another_segment(demo: ModuleType) -> None:
    ids, places = demo.make_texts(3, 4, torch.Generator().manual_seed(1))
    for text, asked in zip(ids.tolist(), places.tolist(), strict=True):
        facts = {
            token // demo.VALUES: token % demo.VALUES for token in text if token < demo.QUESTION
        }
        assert len(facts) == demo.KEYS
        for place in asked:
            assert place >= 3 * demo.SEGMENT
            assert text[place + 1] - demo.VALUE == facts[text[place] - demo.QUESTION]


def test_a_few_steps_lower_the_loss_and_hip_runs_the_same_model(demo: ModuleType) -> None:
    generator = torch.Generator().manual_seed(2)
    trained = demo.Trained.new(seed=0)
    first = trained.train(1, 16, generator)
    last = trained.train(25, 16, generator)
    assert last < first - 0.5
    assert float(trained.gates.detach().abs().min()) > 0
    ids, _ = demo.make_texts(1, 3, generator)
    with torch.inference_mode():
        expected = trained.logits(ids)[0]
        logits = demo.engine_logits(trained.runner(), trained.gates, ids[0])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
