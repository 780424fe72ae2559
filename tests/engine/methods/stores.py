"""A layer's keys and values with nothing but what a test plants, and a model that is never run."""

import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.passes import PrefillPass
from hipcli.engine.store.pages import KVStore
from tests.engine.tiny import tiny_model


def make_runner(backend: str = "auto") -> Runner:
    """6 query heads, 2 KV heads of 16 channels."""
    return Runner(tiny_model("llama"), backend=backend)


def filled_store(
    runner: Runner, k: torch.Tensor, v: torch.Tensor | None = None, capacity: int = 0
) -> KVStore:
    """A store whose layer 0 holds k and v [T, num_kv_heads, head_dim]; v is random by default."""
    store = KVStore(runner.layout, max(len(k), capacity), runner.backend)
    if v is None:
        v = torch.randn(k.shape, generator=torch.Generator().manual_seed(1))
    store.append(0, 0, k, v)
    store.length = len(k)
    return store


def pass_at(runner: Runner, store: KVStore, method: Method, start: int) -> StepInput:
    """A pass whose first token stands at `start`, with the softmax scale of the model."""
    scale = runner.layout.head_dim**-0.5
    return StepInput(store, runner.tables, PrefillPass(method), start, scale)


def turned(x: torch.Tensor, position: int | torch.Tensor) -> torch.Tensor:
    """x [..., head_dim] rotated by RoPE in fp64.

    Args:
        position: of all rows, or one for each, [...]; negative ones turn backwards.
    """
    half = x.shape[-1] // 2
    inverse = 1.0 / (10000.0 ** (torch.arange(half).double() / half))
    pair = torch.complex(x[..., :half].double(), x[..., half:].double())
    pair = pair * torch.exp(1j * torch.as_tensor(position).unsqueeze(-1) * inverse)
    return torch.cat((pair.real, pair.imag), -1)
