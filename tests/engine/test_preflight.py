"""Limits of memory that a user sets: refused before weights are loaded, with what would help."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.placement import most_pages
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Notice
from hipcli.engine.models import resolve
from hipcli.engine.reading.preflight import check_memory
from hipcli.engine.request import AskRequest
from hipcli.engine.resident import resident_bytes
from tests.engine.models import toy_models
from tests.engine.tiny import random_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_models.llama(tmp_path_factory.mktemp("toy") / "model")


def engine(model: Path, **limits: int) -> Engine:
    config = EngineConfig(model.parent, model=str(model), device="cpu", dtype="float32", **limits)
    return Engine.open(config)


def test_the_sizes_are_those_of_the_loaded_model(model: Path) -> None:
    runner = engine(model).runner
    weights = sum({p.data_ptr(): p.nbytes for p in runner.model.parameters()}.values())
    # Keys and values may lie on the disk; the summaries of 16 pages may not.
    needed = weights + runner.layout.num_layers * 16 * runner.layout.summary_bytes
    folder = resolve(str(model), models_dir=model.parent)

    def check(limit: int) -> None:
        config = EngineConfig(model.parent, device="cpu", dtype="float32", host_memory_bytes=limit)
        check_memory(config, folder, 1000)

    check(needed)
    with pytest.raises(DoesNotFitError, match="1,000 tokens"):
        check(needed - 1)


def test_a_refusal_comes_before_the_weights_and_says_what_fits(model: Path) -> None:
    whole = engine(model).runner
    weights = sum({p.data_ptr(): p.nbytes for p in whole.model.parameters()}.values())
    limit = weights + whole.layout.num_layers * 10 * whole.layout.summary_bytes
    refusing = engine(model, host_memory_bytes=limit)
    request = AskRequest(random_ids(2000).numpy(), [3, 4], prefix_tokens=1)
    with pytest.raises(DoesNotFitError) as refused:
        list(refusing.ask(request))
    assert "--host-memory allows" in refused.value.message
    assert "--fit middle --context-limit 640" in refused.value.hint
    assert refusing._loaded is None


def test_what_the_model_and_libraries_take_is_told_once(model: Path) -> None:
    if not resident_bytes():
        pytest.skip("the system does not say what is resident")
    # More than the toy's weights, less than PyTorch.
    asked = engine(model, host_memory_bytes=32 << 20)
    request = AskRequest(random_ids(200).numpy(), [3, 4], prefix_tokens=1)

    def codes() -> list[str]:
        return [event.code for event in asked.ask(request) if isinstance(event, Notice)]

    assert "memory_short" in codes()
    assert "memory_short" not in codes()


def test_the_limit_of_the_other_device_does_not_count(model: Path) -> None:
    folder = resolve(str(model), models_dir=model.parent)
    config = EngineConfig(model.parent, device="cpu", gpu_memory_bytes=1)
    if torch.cuda.is_available():
        pytest.skip("about a machine that runs it on the processor")
    check_memory(config, folder, 1 << 20)


def test_of_several_ranks_counts_what_one_of_them_has(model: Path) -> None:
    """All of it: what a rank has no memory for lies nowhere."""
    runner, tokens = engine(model).runner, 1000
    weights = sum({p.data_ptr(): p.nbytes for p in runner.model.parameters()}.values())
    folder = resolve(str(model), models_dir=model.parent)

    def check(limit: int, ranks: int) -> None:
        config = EngineConfig(model.parent, device="cpu", dtype="float32", host_memory_bytes=limit)
        check_memory(config, folder, tokens, most_pages("interleaved", 16, ranks))

    half = weights + runner.layout.num_bytes(512)
    check(half, 2)
    with pytest.raises(DoesNotFitError, match="512 of 1,000 tokens on one rank"):
        check(half - 1, 2)
    with pytest.raises(DoesNotFitError, match="keys and values") as refused:
        check(half, 1)
    assert "--context-limit 512" in refused.value.hint and "more ranks" in refused.value.hint
