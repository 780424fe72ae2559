"""Quest: the bound of a page's box, by hand."""

import torch

from hipcli.engine.methods.configs import QuestConfig
from hipcli.engine.methods.quest import QuestMethod
from tests.engine.methods.stores import filled_store, make_runner, pass_at, turned

CONFIG = QuestConfig(sink_tokens=64, window_tokens=64, budget_tokens=64, query_distance_tokens=100)


def test_the_bound_of_the_box_decides_and_not_the_best_key() -> None:
    """Page 2 has keys (10, -10) and (-10, 10): its box allows (10, 10), bound 20, best score 0.
    Page 3 has a key (9, 9): bound and score are 18."""
    runner = make_runner()
    k = torch.zeros(512, 2, runner.layout.head_dim)
    k[130, 0, :2] = torch.tensor([10.0, -10.0])
    k[140, 0, :2] = torch.tensor([-10.0, 10.0])
    k[200, 0, :2] = torch.tensor([9.0, 9.0])
    k[300, 1, :2] = torch.tensor([1.0, 1.0])
    wanted = torch.zeros(runner.layout.head_dim)
    wanted[:2] = 1
    method = QuestMethod(CONFIG)
    q = turned(wanted, -CONFIG.query_distance_tokens).float().expand(1, runner.num_heads, -1)
    store = filled_store(runner, k)
    pages = method.select_token(0, q[0], pass_at(runner, store, method, 511))
    assert pages is not None and pages.tolist() == [[2], [4]]


def test_bounds_are_the_formulas() -> None:
    """Sum over channels of max(q * smallest, q * largest), maximum over the group, in fp64."""
    runner = make_runner()
    torch.manual_seed(2)
    k = torch.randn(1024, 2, runner.layout.head_dim)
    q = torch.randn(3, runner.num_heads, runner.layout.head_dim)
    method = QuestMethod(QuestConfig(64, 64, 192, 100))
    step = pass_at(runner, filled_store(runner, k), method, 1020)
    starts = torch.full((3,), 896, dtype=torch.int32)
    chosen = method.select_question(0, q, starts, step)
    rotated = turned(q, 100).unflatten(1, (2, 3))
    pages = k.double().unflatten(0, (-1, 64))
    low, high = pages.amin(1), pages.amax(1)
    for token in range(3):
        for head in range(2):
            rows = rotated[token, head][:, None]
            bounds = torch.maximum(rows * low[:, head], rows * high[:, head]).sum(-1).amax(0)
            best = bounds[1:14].topk(3).indices + 1
            assert sorted(best.tolist()) == chosen[token, head].tolist()
            assert method.select_token(0, q[token], step)[head].tolist() == sorted(best.tolist())
