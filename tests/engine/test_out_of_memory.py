"""A GPU that runs out of memory while a question is asked or answered: said like the preflight."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.device import memory_errors, short_device
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Event, Progress, Result, Token
from hipcli.engine.forward.runner import Runner
from hipcli.engine.request import AskRequest
from hipcli.engine.sessions import SessionStore
from hipcli.engine.store.layout import KVLayout
from tests.engine.models import toy_models
from tests.engine.tiny import random_ids

LENGTH = 700
GIB = 1 << 30


def asked(engine: Engine, cache: Path, events: list[Event]) -> Result:
    request = AskRequest(
        random_ids(LENGTH).numpy(),
        random_ids(20, seed=1).tolist(),
        prefix_tokens=1,
        answer="attend",
        generation=GenerationConfig(max_new_tokens=8),
        cache=CacheConfig(cache),
    )
    events += engine.ask(request)
    result = events[-1]
    assert isinstance(result, Result)
    return result


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("models")
    model = toy_models.llama(folder / "model")
    return Engine.open(EngineConfig(folder, model=str(model), device="cpu"))


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize(
    "error",
    [torch.cuda.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")],
)
def test_the_session_stays_and_the_message_is_the_preflights(
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    error: RuntimeError,
) -> None:
    expected = asked(engine, tmp_path / "other", [])
    events: list[Event] = []
    logits = Runner.logits

    def short(runner: Runner, ids: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
        if sum(isinstance(event, Token) for event in events) >= tokens:
            raise error
        return logits(runner, ids, *rest, **named)

    class Seen(list):
        """As a user sees events: one by one."""

        def __iadd__(self, stream: object) -> "Seen":
            for event in stream:
                self.append(event)
            return self

    events = Seen()
    with monkeypatch.context() as patched:
        patched.setattr(Runner, "logits", short)
        with pytest.raises(DoesNotFitError, match="ran out of memory: weights") as refused:
            asked(engine, tmp_path / "cache", events)
    assert f"{LENGTH + 28:,} tokens" in refused.value.message
    assert "--kv-dtype fp8_e4m3" in refused.value.hint and "--device cpu" in refused.value.hint
    assert sum(isinstance(event, Token) for event in events) == tokens
    sessions = SessionStore(tmp_path / "cache")
    sessions.verify(sessions.find())
    again: list[Event] = []
    result = asked(engine, tmp_path / "cache", again)
    assert result.answer == expected.answer
    assert result.session.reused and result.cached_tokens == LENGTH
    assert not [event for event in again if isinstance(event, Progress)]


def test_other_errors_are_not_taken_for_it() -> None:
    def never() -> DoesNotFitError:
        raise AssertionError("this was no lack of memory")

    with pytest.raises(RuntimeError, match="shapes differ"), memory_errors(never):
        raise RuntimeError("shapes differ")


def test_the_flag_that_would_help() -> None:
    layout = KVLayout(32, 8, 128, torch.bfloat16)
    device = torch.device("cuda:0")
    short = short_device(layout, 1 << 20, (16 * GIB, 60 * GIB), device)
    assert "cuda:0 ran out of memory: weights (16.00 GiB)" in short.message
    assert "--gpu-memory 75GiB" in short.hint
    # Nothing that could be left free.
    layout = KVLayout(32, 8, 128, torch.bfloat16, "fp8_e4m3")
    short = short_device(layout, 1 << 20, (16 * GIB, GIB // 2), device)
    assert "--gpu-memory" not in short.hint and "--kv-dtype" not in short.hint
