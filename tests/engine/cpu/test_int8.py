"""Weights of 8 bits: close to what they were, the same for a token whoever is beside it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.cpu.linear import (
    CHUNK_ROWS,
    Int8Linear,
    Int8WeightsLinear,
    PartOfLinear,
    best_form,
    int8_rows,
)
from hipcli.engine.device import check_weights
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.events import Result
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.request import AskRequest, InputRecord
from tests.engine.evaluation.tiny import model_folder
from tests.engine.tiny import random_ids, stock_logits, tiny_model

FORMS = [Int8WeightsLinear]
if best_form(nn.Linear(1, 1), "int8") is Int8Linear:
    FORMS.append(Int8Linear)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_within_two_hundredths(form: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(96, 128, dtype=dtype), torch.randn(96, dtype=dtype)
    x = torch.randn(7, 128, dtype=dtype)
    x[2] *= 100
    x[3] = 0
    got = form(weight, bias)(x)
    expected = linear(x.float(), weight.float(), bias.float())
    assert got.dtype == dtype
    errors = (got.float() - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.max() < 0.02
    torch.testing.assert_close(got[3], bias)


@pytest.mark.parametrize("form", FORMS)
def test_a_token_does_not_depend_on_its_neighbours(form: type) -> None:
    torch.manual_seed(0)
    product, x = form(torch.randn(64, 128), None), torch.randn(40, 128)
    x[5] *= 1000
    whole = product(x)
    for rows in (x.split(1), x.split(16), x.split(33)):
        torch.testing.assert_close(torch.cat([product(part) for part in rows]), whole)


@pytest.mark.skipif(Int8Linear not in FORMS, reason="FBGEMM is not built in")
def test_a_chunk_agrees_with_its_tokens() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(96, 128), torch.randn(96)
    product = Int8Linear(weight.bfloat16(), bias.bfloat16())
    x = torch.randn(2, CHUNK_ROWS, 128).bfloat16()
    x[0, 5] *= 1000
    x[1, 7] = 0
    expected = linear(x.float(), weight, bias)
    whole, parts = product(x), product(x.flatten(0, 1)[:9])
    assert whole.shape == expected.shape and whole.dtype == torch.bfloat16
    errors = (whole.float() - expected).norm(dim=2) / expected.norm(dim=2)
    assert errors.max() < 0.025
    torch.testing.assert_close(whole[1, 7], bias.bfloat16())
    close = (whole[0, :9] - parts).norm(dim=1) / parts.norm(dim=1)
    assert close.max() < 0.01


def test_rows_of_zeros_stay_zeros() -> None:
    rows, factors = int8_rows(torch.zeros(3, 8))
    assert rows.eq(0).all() and factors.isfinite().all()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "granite"])
def test_a_model_is_close_to_itself(name: str) -> None:
    model = tiny_model(name)
    ids = random_ids(90)
    expected = stock_logits(model, ids)
    runner = Runner(model, weights="int8")
    assert isinstance(model.model.layers[0].self_attn.o_proj, PartOfLinear)
    store = runner.new_store(90)
    step = StepInput(store, runner.tables, PrefillPass(DenseMethod()), 0)
    rows = [runner.logits(ids[:64], step, keep=64)]
    attention = AnswerPass(DenseMethod())
    for position in range(64, 90):
        step = StepInput(store, runner.tables, attention, position)
        rows.append(runner.logits(ids[position : position + 1], step))
    error = (torch.cat(rows) - expected).norm() / expected.norm()
    assert 1e-4 < error < 0.15


def ask(engine: Engine, cache: Path) -> Result:
    ids = np.arange(100, dtype=np.int32) % 90
    request = AskRequest(
        context_ids=ids,
        question_ids=ids[:5].tolist(),
        prefix_tokens=2,
        inputs=(InputRecord("numbers", "100"),),
        generation=GenerationConfig(max_new_tokens=2),
        cache=CacheConfig(cache),
    )
    return [event for event in engine.ask(request) if isinstance(event, Result)][0]


def test_sessions_of_other_formats_are_others(tmp_path: Path) -> None:
    model = str(model_folder(tmp_path / "tiny"))
    cached = []
    for formats in [("auto", "auto"), ("int8", "auto"), ("auto", "int8")] * 2:
        weights, kv_dtype = formats
        config = EngineConfig(
            tmp_path, model=model, device="cpu", weights=weights, kv_dtype=kv_dtype
        )
        engine = Engine.open(config)
        cached.append(ask(engine, tmp_path / "cache").cached_tokens)
        # What was used, where it was left to the machine.
        used = [engine.loaded.dtype if name == "auto" else name for name in formats]
        told = engine.description["model"]
        assert [told["weights"], told["kv_dtype"]] == used
        assert engine.loaded.runner.layout.kv_dtype == kv_dtype
    assert cached == [0, 0, 0, 100, 100, 100]


def test_a_gpu_refuses_them() -> None:
    check_weights("int8", "cpu")
    check_weights("auto", "cuda:0")
    with pytest.raises(UsageError, match="for processors"):
        check_weights("int8", "cuda:0")
    with pytest.raises(ValueError, match="must be auto or int8"):
        EngineConfig(Path("models"), weights="int4")
