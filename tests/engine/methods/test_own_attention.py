"""What methods that attend by themselves say they attended is what they attended."""

import pytest
import torch

from hipcli.engine.methods.plain import query_blocks, span_rows, token_rows
from tests.engine.methods.stores import filled_store, make_runner, pass_at
from tests.engine.test_method_laws import SPARSE


@pytest.mark.parametrize("length", [100, 700])
@pytest.mark.parametrize("name", ["infllm", "reattention", "infini"])
def test_other_values_do_not_matter(name: str, length: int) -> None:
    """The last query's output is the same whatever the values of keys that are not named."""
    runner, generator = make_runner(), torch.Generator().manual_seed(length)
    k, v = (torch.randn(length, 2, runner.layout.head_dim, generator=generator) for _ in range(2))
    q = torch.randn(length, runner.num_heads, runner.layout.head_dim, generator=generator)

    def run(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        method = SPARSE[name]()
        if name == "infini":
            # A memory holds the values of all before; closed, it is not read.
            method.own_attention.gates.fill_(-40.0)
        store = filled_store(runner, k, values)
        step = pass_at(runner, store, method, 0)
        out = step.attention.attend(0, q, step)[-1]
        return out, method.own_attention.attended(0, store, length - 1)

    out, named = run(v)
    assert len(named.unique()) == len(named) and int(named.max()) == length - 1
    assert (len(named) < length) == (length == 700)
    spoilt = torch.full_like(v, 100.0)
    spoilt[named] = v[named]
    torch.testing.assert_close(run(spoilt)[0], out, rtol=1e-5, atol=1e-5)


def test_query_blocks_are_cut_on_the_grid() -> None:
    assert query_blocks(0, 130, 64) == [(0, 64), (64, 128), (128, 130)]
    assert query_blocks(70, 10, 64) == [(70, 80)]
    assert query_blocks(100, 64, 64) == [(100, 128), (128, 164)]
    assert query_blocks(128, 64, 64) == [(128, 192)]


def test_rows_are_the_tokens_that_were_written() -> None:
    runner = make_runner()
    k = torch.randn(300, 2, runner.layout.head_dim)
    v = torch.randn(300, 2, runner.layout.head_dim)
    store = filled_store(runner, k, v)
    for found, truth in zip(span_rows(store, 0, 70, 290), (k[70:290], v[70:290]), strict=True):
        assert torch.equal(found, truth)
    tokens = torch.tensor([0, 3, 64, 191, 299])
    for found, truth in zip(token_rows(store, 0, tokens), (k[tokens], v[tokens]), strict=True):
        assert torch.equal(found, truth)
