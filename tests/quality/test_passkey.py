"""Passkeys with the default model, found at every depth.

The short set runs in CI; `make quality` runs the long ones.
"""

from pathlib import Path

import pytest

from hipcli.engine.config import EngineConfig
from hipcli.engine.engine import Engine
from tests.conftest import real_models_dir
from tests.quality.passkey import ask_passkey

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.open(EngineConfig(models_dir=real_models_dir()))


@pytest.mark.parametrize("depth", DEPTHS)
def test_noise_8k(engine: Engine, tmp_path: Path, depth: float) -> None:
    outcome = ask_passkey(engine, "noise", 8_000, depth, seed=int(depth * 10), folder=tmp_path)
    assert outcome.right, outcome


LONG = [
    *(("noise", 32_000, depth) for depth in DEPTHS),
    *(("code", 32_000, depth) for depth in DEPTHS),
    *(("noise", 128_000, depth) for depth in DEPTHS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_tokens", "depth"), LONG)
def test_long(engine: Engine, tmp_path: Path, kind: str, num_tokens: int, depth: float) -> None:
    outcome = ask_passkey(engine, kind, num_tokens, depth, seed=int(depth * 10), folder=tmp_path)
    assert outcome.right, outcome
