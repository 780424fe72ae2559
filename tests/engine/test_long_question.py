"""A question of thousands of tokens: it tells how far it has been read."""

from pathlib import Path

from hipcli.engine.config import EngineConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.events import Event, Progress, Result
from hipcli.engine.request import AskRequest
from tests.engine.models import toy_models
from tests.engine.tiny import random_ids


def events(engine: Engine, question_tokens: int) -> list[Event]:
    request = AskRequest(
        random_ids(300).numpy(),
        random_ids(question_tokens, seed=1).tolist(),
        prefix_tokens=1,
        generation=GenerationConfig(max_new_tokens=2),
    )
    return list(engine.ask(request))


def test_a_long_question_shows_progress(tmp_path: Path) -> None:
    model = toy_models.llama(tmp_path / "model")
    engine = Engine.open(EngineConfig(tmp_path, model=str(model), device="cpu"))
    told = [event for event in events(engine, 1500) if isinstance(event, Progress)]
    read = [event for event in told if event.phase == "question"]
    assert [event.done_tokens for event in read] == [512, 1024, 1244]
    assert all(event.total_tokens == 1244 and event.tokens_per_s > 0 for event in read)
    assert read[-1].eta_s == 0.0
    short = events(engine, 200)
    assert not [event for event in short if getattr(event, "phase", "") == "question"]
    assert isinstance(short[-1], Result)
