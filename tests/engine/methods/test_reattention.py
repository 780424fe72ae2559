"""ReAttention: who votes for what, which spans follow, and where they stand."""

import dataclasses

import pytest
import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods import reattention
from hipcli.engine.methods.configs import ReAttentionConfig
from hipcli.engine.methods.reattention import ReAttentionMethod, best_keys, spans, voted_keys
from tests.engine.methods.stores import filled_store, make_runner, pass_at, turned

CONFIG = ReAttentionConfig(
    sink_tokens=64,
    window_tokens=128,
    budget_tokens=64,
    span_tokens=8,
    keys_per_query=2,
    query_block_tokens=64,
)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_runner()


def test_best_keys_are_topk() -> None:
    scores = torch.randn(3, 5, 640, generator=torch.Generator().manual_seed(1))
    # Several of the best in one group.
    scores[0, 0, 70:73] = torch.tensor([9.0, 8.0, 7.0])
    for count in (1, 4):
        values, places = best_keys(scores, count)
        expected = scores.topk(count)
        assert torch.equal(values, expected.values) and torch.equal(places, expected.indices)


@pytest.mark.parametrize("most", [1 << 26, 1 << 10])
def test_votes_in_tiles_are_votes_at_once(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Every query head with the keys of its own KV head, without scale or positions."""
    monkeypatch.setattr(reattention, "MAX_SCORES", most)
    torch.manual_seed(2)
    k = torch.randn(700, 2, runner.layout.head_dim)
    q = torch.randn(5, runner.num_heads, runner.layout.head_dim)
    places = voted_keys(filled_store(runner, k), 0, q, 64, 576, 2)
    for head in range(6):
        for token in range(5):
            scores = k[64:576, head // 3] @ q[token, head]
            expected = set((scores.topk(2).indices + 64).tolist())
            assert set(places[head // 3, (head % 3) * 5 + token].tolist()) == expected


def test_spans_by_hand() -> None:
    votes = torch.tensor([[100, 100, 100, 64], [150, 150, 102, 199]])
    # 100 has three votes, 150 two; of 64, 102 and 199 with one each the earliest goes on.
    expected = [64, 65, *range(98, 102), *range(148, 152)]
    assert spans(votes, 64, 200, 3, 4).tolist() == expected
    # The end is as far as a span goes.
    assert spans(torch.tensor([199]), 64, 200, 3, 4).tolist() == [197, 198, 199]


def test_two_good_keys_next_to_each_other_are_two_votes(runner: Runner) -> None:
    """The released kernel would count the better one of 128 only."""
    k = torch.zeros(700, 2, runner.layout.head_dim)
    k[300, 0, 0], k[340, 0, 0], k[450, 0, 0] = 9.0, 8.0, 7.0
    q = torch.zeros(1, runner.num_heads, runner.layout.head_dim)
    q[:, :, 0] = 1
    places = voted_keys(filled_store(runner, k), 0, q, 64, 576, 2)
    assert set(places[0].flatten().tolist()) == {300, 340}


def test_equals_attention_at_consecutive_positions(runner: Runner) -> None:
    """Independent oracle in fp64 for the last block of queries."""
    torch.manual_seed(3)
    dim, length = runner.layout.head_dim, 680
    k, v = torch.randn(length, 2, dim), torch.randn(length, 2, dim)
    q = torch.randn(length - 640, runner.num_heads, dim)
    method = ReAttentionMethod(CONFIG)
    step = pass_at(runner, filled_store(runner, k, v), method, 640)
    out = step.attention.attend(0, q, step)
    votes = []
    for head in range(6):
        scores = torch.einsum("td,kd->tk", q[:, head], k[64:512, head // 3])
        votes += (scores.topk(2).indices + 64).flatten().tolist()
    ranked = sorted(set(votes), key=lambda token: (-votes.count(token), token))[:8]
    chosen = sorted({max(64, min(511, t + o)) for t in ranked for o in range(-4, 4)})
    keys = [*range(64), *chosen, *range(512, length)]
    rows = turned(k[keys], torch.arange(len(keys))[:, None].expand(-1, 2))
    for i in (0, 7, 39):
        last = len(keys) - 40 + i
        for head in (0, 5):
            logits = rows[: last + 1, head // 3] @ turned(q[i, head], last) * step.softmax_scale
            expected = logits.softmax(0) @ v[keys][: last + 1, head // 3].double()
            torch.testing.assert_close(out[i, head].double(), expected, rtol=1e-4, atol=1e-5)


def test_a_span_longer_than_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="span_tokens is 128"):
        dataclasses.replace(CONFIG, span_tokens=128)
