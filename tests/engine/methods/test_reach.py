"""How far back `hip` selects while a document is read, and what is left to the device."""

import pytest
import torch

from hipcli.engine.errors import UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods import make_config, make_method
from hipcli.engine.methods.configs import EVERYTHING, HipConfig
from hipcli.engine.passes import PrefillPass
from hipcli.engine.store.pages import KVStore
from tests.engine.tiny import tiny_hip, tiny_model

TOKENS = 1472


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def selected(runner: Runner, backend: str, reach_tokens: int) -> tuple[torch.Tensor, list[int]]:
    """Pages of the last three query blocks, and their window starts."""
    torch.manual_seed(4)
    method = tiny_hip(reach_tokens)
    store = KVStore(runner.layout, TOKENS, backend)
    shape = (TOKENS, runner.layout.num_kv_heads, runner.layout.head_dim)
    store.append(0, 0, torch.randn(shape), torch.randn(shape))
    q = torch.randn(192, runner.num_heads, runner.layout.head_dim)
    step = StepInput(store, runner.tables, PrefillPass(method), TOKENS - 192)
    starts = method.geometry.window_starts(TOKENS - 192, TOKENS)
    pages = method.select_prefill(0, q, torch.tensor(starts, dtype=torch.int32), step)
    return pages, starts


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_only_pages_within_reach_are_selected(runner: Runner, backend: str) -> None:
    pages, starts = selected(runner, backend, 256)
    for block, start in enumerate(starts):
        assert (pages[block] * 64 >= start - 256).all() and (pages[block] * 64 < start).all()
        assert (pages[block].diff(dim=-1) > 0).all()
    everything, _ = selected(runner, backend, 0)
    assert not torch.equal(everything, pages)
    # A reach of just what there is leaves nothing out.
    assert torch.equal(selected(runner, backend, TOKENS)[0], everything)


def test_a_reach_of_the_budget_takes_what_is_next_to_the_window(runner: Runner) -> None:
    pages, starts = selected(runner, "cpu", 128)
    for block, start in enumerate(starts):
        assert (pages[block] == torch.tensor([start // 64 - 2, start // 64 - 1])).all()


def test_devices_fill_in_their_numbers() -> None:
    on_cpu = make_method("hip", {}, "cpu").config
    assert (on_cpu.prefill_budget_tokens, on_cpu.prefill_reach_tokens) == (256, 131072)
    on_gpu = make_method("hip", {}, "cuda").config
    assert (on_gpu.prefill_budget_tokens, on_gpu.prefill_reach_tokens) == (1024, EVERYTHING)
    given = {"prefill_budget_tokens": 512, "prefill_reach_tokens": 4096}
    for device in ("cpu", "cuda"):
        assert make_method("hip", given, device).config == HipConfig(**given)


def test_pages_are_whole() -> None:
    for name in HipConfig.AUTOMATIC:
        for value in (-64, 100):
            with pytest.raises(UsageError, match=f"{name} is {value}"):
                make_config("hip", {name: value})
