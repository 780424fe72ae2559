"""Distances to dense attention against the same arithmetic spelled out in fp64."""

import math

import pytest
import torch

from hipcli.engine.evaluation.capture import TOP_KEYS
from hipcli.engine.evaluation.fidelity import ANSWER_TOKENS, SLICE_TOKENS, measure
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.base import Method
from hipcli.engine.methods.configs import HipConfig, WindowConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.methods.window import WindowMethod
from tests.engine.test_method_laws import SPARSE, rotate
from tests.engine.tiny import decode_logits, prefill_logits, random_ids, tiny_model

LENGTH = 5 * SLICE_TOKENS + 70


def small_hip(budget: int) -> HipMethod:
    return HipMethod(
        HipConfig(
            sink_tokens=64,
            window_tokens=128,
            budget_tokens=128,
            prefill_budget_tokens=budget,
            dense_tokens=0,
            candidate_tokens=256,
            query_distance_tokens=200,
        )
    )


def window() -> WindowMethod:
    return WindowMethod(WindowConfig(sink_tokens=64, window_tokens=128))


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def report(runner: Runner, method: Method) -> dict:
    ids = random_ids(LENGTH)
    *_, (done, (last,)) = measure(runner, [("m", method)], ids)
    assert done == LENGTH
    return last


@pytest.mark.parametrize("make", [DenseMethod, lambda: small_hip(1024)])
def test_dense_is_no_distance_from_dense(runner: Runner, make) -> None:
    found = report(runner, make())
    assert found["all"]["tokens"] == LENGTH - 1
    assert found["all"]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert found["all"]["kl"] == pytest.approx(0.0, abs=1e-5)
    assert found["all"]["top_1"] == 1.0
    assert found["answering"]["kl"] == pytest.approx(0.0, abs=1e-5)
    assert found["sparse"]["tokens"] == 0
    assert found["mass"] is None and found["layers"] == []


def test_what_a_kv_dtype_costs_is_the_distance_of_dense(runner: Runner) -> None:
    exact = report(runner, DenseMethod())["all"]
    found = report(Runner(tiny_model("llama"), "int8"), DenseMethod())
    assert found["all"]["perplexity"] != exact["perplexity"]
    assert 0 < found["all"]["kl"] < 1e-3 and 0 < found["answering"]["kl"] < 1e-3


@pytest.mark.parametrize("make", [window, lambda: small_hip(128)])
def test_distances_equal_the_definition(runner: Runner, make) -> None:
    ids = random_ids(LENGTH)
    dense, sparse = (
        prefill_logits(runner, method, ids, 128).double().log_softmax(-1)[:-1]
        for method in (DenseMethod(), make())
    )
    targets = ids[1:]
    rows = torch.arange(len(targets))
    first = next(n for n in range(LENGTH) if make().geometry.window_start(n) > 0)
    found = report(runner, make())
    for name, part in (("all", slice(None)), ("sparse", slice(first, None))):
        p, q = dense[part], sparse[part]
        nll = -q[rows[: len(q)], targets[part]].mean()
        dense_nll = -p[rows[: len(p)], targets[part]].mean()
        assert found[name]["tokens"] == len(q)
        assert found[name]["perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)
        assert found[name]["ratio"] == pytest.approx(math.exp(nll - dense_nll), rel=1e-4)
        assert found[name]["kl"] == pytest.approx(
            float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3
        )
        agreed = (p.argmax(-1) == q.argmax(-1)).double().mean()
        assert found[name]["top_1"] == pytest.approx(float(agreed))
    assert 0 < found["mass"] < 1


@pytest.mark.parametrize("make", [window, lambda: small_hip(128), SPARSE["infllm"]])
def test_answering_equals_the_definition(runner: Runner, make) -> None:
    ids = random_ids(LENGTH)
    # The first border of a page within the last tokens that have a successor.
    first = 640
    assert 0 < LENGTH - 1 - first <= ANSWER_TOKENS
    dense = prefill_logits(runner, DenseMethod(), ids, 128)[first:-1].double().log_softmax(-1)
    sparse = decode_logits(runner, make(), ids[:-1], prompt=first).double().log_softmax(-1)
    found = report(runner, make())["answering"]
    assert found["tokens"] == LENGTH - 1 - first
    kl = (dense.exp() * (dense - sparse)).sum(-1).mean()
    assert found["kl"] == pytest.approx(float(kl), rel=1e-3) and kl > 1e-3
    agreed = (dense.argmax(-1) == sparse.argmax(-1)).double().mean()
    assert found["top_1"] == pytest.approx(float(agreed))


def test_mass_and_top_keys_equal_the_definition(runner: Runner) -> None:
    """Layer 0, whose queries and keys do not depend on attention."""
    ids = random_ids(LENGTH)
    found = report(runner, window())
    layer = runner.model.model.layers[0]
    with torch.inference_mode():
        hidden = layer.input_layernorm(runner.model.model.embed_tokens(ids))
        head_dim = runner.layout.head_dim
        q = layer.self_attn.q_proj(hidden).view(LENGTH, -1, head_dim).double()
        k = layer.self_attn.k_proj(hidden).view(LENGTH, -1, head_dim).double()
    inverse = 1.0 / (10000.0 ** (torch.arange(0, head_dim, 2).double() / head_dim))
    group = q.shape[1] // k.shape[1]
    geometry = window().geometry
    masses, recalls = [], []
    ends = [*range(SLICE_TOKENS, LENGTH, SLICE_TOKENS), LENGTH]
    for position in (end - 1 for end in ends):
        start = geometry.window_start(position)
        if start == 0:
            continue
        for head in range(q.shape[1]):
            query = rotate(q[position, head], torch.tensor(position).double(), inverse)
            keys = torch.stack(
                [
                    rotate(k[n, head // group], torch.tensor(n).double(), inverse)
                    for n in range(position + 1)
                ]
            )
            share = torch.softmax(keys @ query * head_dim**-0.5, 0)
            masses.append(float(share[:64].sum() + share[start:].sum()))
        if start - 64 > TOP_KEYS:
            recalls.append(0.0)
    assert found["layers"][0]["layer"] == 0
    assert found["layers"][0]["mass"] == pytest.approx(sum(masses) / len(masses), rel=1e-4)
    # A window attends nothing between sinks and window.
    assert recalls and found["layers"][0]["top_keys"] == 0.0


def test_more_budget_captures_more(runner: Runner) -> None:
    little, much = (report(runner, small_hip(budget)) for budget in (64, 256))
    bare = report(runner, window())
    assert bare["mass"] < little["mass"] < much["mass"] < 1
    assert 0 < little["top_keys"] < much["top_keys"] <= 1
    assert len(much["layers"]) == runner.layout.num_layers


@pytest.mark.parametrize("name", ["infllm", "reattention", "infini"])
def test_methods_that_attend_by_themselves_are_measured_too(runner: Runner, name: str) -> None:
    found = report(runner, SPARSE[name]())
    assert len(found["layers"]) == runner.layout.num_layers
    assert 0 < found["mass"] < 1 and 0 <= found["top_keys"] < 1
