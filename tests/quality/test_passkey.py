"""Passkeys with the default model, found at every depth.

The short set runs in CI; `make quality` runs the long ones.
"""

import pytest

from hipcli.engine.config import EngineConfig
from hipcli.engine.engine import Engine
from hipcli.engine.evaluation.plan import Plan
from hipcli.engine.evaluation.running import Evaluation
from hipcli.prompts.whole_text import TextPrompts
from tests.conftest import real_models_dir

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.open(EngineConfig(models_dir=real_models_dir()))


def ask_passkey(engine: Engine, haystack: str, length: int, depth: float) -> dict:
    """The row of one passkey, asked for in the default mode."""
    plan = Plan(("passkey",), (haystack,), (length,), (depth,), ("hip",), ("auto",))
    ((row,),) = Evaluation(engine, TextPrompts(engine.tokenizer), plan).rows(set())
    return row


@pytest.mark.parametrize("depth", DEPTHS)
def test_noise_8k(engine: Engine, depth: float) -> None:
    row = ask_passkey(engine, "noise", 8 << 10, depth)
    assert row["score"] == row["recall_1"] == 1.0, row["questions"]


LONG = [
    *(("noise", 32 << 10, depth) for depth in DEPTHS),
    *(("code", 32 << 10, depth) for depth in DEPTHS),
    *(("prose", 32 << 10, depth) for depth in DEPTHS),
    *(("noise", 128 << 10, depth) for depth in DEPTHS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("haystack", "length", "depth"), LONG)
def test_long(engine: Engine, haystack: str, length: int, depth: float) -> None:
    row = ask_passkey(engine, haystack, length, depth)
    assert row["score"] == row["recall_1"] == 1.0, row["questions"]
