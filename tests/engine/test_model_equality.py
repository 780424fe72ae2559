"""With dense attention hip is the stock Transformers model, whatever the chunking."""

import copy

import pytest
import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.configs import HipConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from tests.engine.tiny import (
    CONFIGS,
    decode_logits,
    prefill_logits,
    random_ids,
    stock_logits,
    tiny_model,
)

LENGTH = 333


def wide_hip() -> HipMethod:
    """`hip` with a budget that covers more than the context of these tests."""
    return HipMethod(
        HipConfig(
            sink_tokens=64,
            window_tokens=64,
            dense_tokens=0,
            prefill_budget_tokens=512,
            budget_tokens=512,
        )
    )


METHODS = {"dense": DenseMethod, "hip": wide_hip}


def close(ours: torch.Tensor, stock: torch.Tensor) -> None:
    """fp32 against fp32: the same sums in another order."""
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_equals_stock(name: str, method: str) -> None:
    model = tiny_model(name)
    ids = random_ids(LENGTH)
    stock = stock_logits(model, ids)
    runner = Runner(model)
    for chunk in (LENGTH, 128, 64, 50, 1):
        if chunk == 1 and name != "llama":
            continue
        close(prefill_logits(runner, METHODS[method](), ids, chunk), stock)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "phi3", "granite"])
def test_decode_equals_stock(name: str, method: str) -> None:
    model = tiny_model(name)
    ids = random_ids(260, seed=1)
    stock = stock_logits(model, ids)
    runner = Runner(model)
    close(decode_logits(runner, METHODS[method](), ids, prompt=120), stock[120:])


def test_bf16_is_as_close_to_fp32_as_stock_bf16() -> None:
    ids = random_ids(LENGTH)
    model = tiny_model("llama")
    exact = stock_logits(model, ids)
    low = copy.deepcopy(model).to(torch.bfloat16)
    stock_error = (stock_logits(low, ids) - exact).norm()
    ours = prefill_logits(Runner(low), DenseMethod(), ids, 128)
    assert (ours - exact).norm() <= 2 * stock_error


def test_attention_sharp_enough_to_matter() -> None:
    """Guards the tests above: without its context the model says something else."""
    model = tiny_model("llama")
    ids = random_ids(LENGTH)
    whole = stock_logits(model, ids)[-1]
    short = stock_logits(model, ids[-20:])[-1]
    assert (whole - short).abs().max() > 0.5
