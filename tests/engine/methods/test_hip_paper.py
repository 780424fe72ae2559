"""hip-paper: the halving search told chunk by chunk, its schedule, and its known weakness."""

import dataclasses

import pytest
import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipPaperConfig
from hipcli.engine.methods.hip_paper import HipPaperMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from tests.engine.methods.stores import filled_store, make_runner, pass_at, turned
from tests.engine.tiny import random_ids

CONFIG = HipPaperConfig(
    sink_tokens=64,
    window_tokens=128,
    budget_tokens=64,
    first_layers=0,
    chunk_tokens=64,
    middle_chunk_tokens=16,
    block_tokens=8,
    first_kept_tokens=256,
    second_kept_tokens=128,
)
LENGTH = 1000


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_runner()


def halve_by_hand(
    rows: torch.Tensor, k: torch.Tensor, low: int, high: int, size: int, middle: bool, turns
) -> float:
    """The score that one head finds in chunk [low, high).

    Args:
        rows: fp64 [n, head_dim], un-rotated queries.
        k: fp64 [T, head_dim].
        turns: query position and key position for the left half, then for the right.
    """

    def score(token: int, side: int) -> float:
        query, key = turns[side]
        return float((turned(rows, query) @ turned(k[token], key)).max())

    best = float("-inf")
    if middle:
        while size >= 1:
            size //= 2
            centre = (low + high) // 2
            left, right = score((low + centre) // 2, 0), score((centre + high) // 2, 1)
            low, high = (low, centre) if left > right else (centre, high)
            best = max(best, left, right)
        return best
    while size > 1:
        size //= 2
        centre = (low + high) // 2
        left, right = score(low, 0), score(centre, 1)
        low, high = (low, centre) if left > right else (centre, high)
    return score(low, 1)


def select_by_hand(
    q: torch.Tensor, k: torch.Tensor, window_start: int, config: HipPaperConfig, by_index: bool
) -> list[int]:
    """Blocks for queries [n, num_heads, head_dim] in three stages, by plain loops."""
    q, k = q.double(), k.double()
    stages = (
        (config.chunk_tokens, config.first_kept_tokens, 4),
        (config.middle_chunk_tokens, config.second_kept_tokens, 4),
        (config.block_tokens, config.budget_tokens, 1),
    )
    chunks = list(range(config.sink_tokens, window_start, config.chunk_tokens))
    parent = config.chunk_tokens
    for size, kept, stride in stages:
        chunks = [c + o for c in chunks for o in range(0, parent, size) if c + o < window_start]
        window, scored = config.window_tokens, []
        for index, start in enumerate(chunks):
            turns = ((window + 1, 0), (window + 1, 1))
            if by_index:
                turns = ((len(chunks) + window, index),) * 2
            found = []
            for head in range(q.shape[1]):
                rows = torch.stack([run.mean(0) for run in q[:, head].split(stride)])
                keys = k[:, head // (q.shape[1] // k.shape[1])]
                end = min(start + size, window_start)
                middle = config.middle_probes == 1
                found.append(halve_by_hand(rows, keys, start, end, size, middle, turns))
            scored.append((max(found), start))
        chosen = (
            sorted(scored, reverse=True)[: kept // size] if len(chunks) > kept // size else scored
        )
        chunks, parent = sorted(start for _, start in chosen), size
    return [start // config.block_tokens for start in chunks]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("middle_probes", [0, 1])
def test_equals_the_paper_told_chunk_by_chunk(
    runner: Runner, middle_probes: int, by_index: bool
) -> None:
    torch.manual_seed(6 + middle_probes)
    config = dataclasses.replace(
        CONFIG,
        middle_probes=middle_probes,
        first_layers=int(by_index),
        first_layers_factor=1,
        chunk_tokens=128,
    )
    k = torch.randn(LENGTH, 2, runner.layout.head_dim)
    q = torch.randn(10, runner.num_heads, runner.layout.head_dim)
    method = HipPaperMethod(config)
    step = pass_at(runner, filled_store(runner, k), method, LENGTH - 10)
    # The window starts in the middle of a chunk.
    starts = torch.full((10,), 768, dtype=torch.int32)
    assert method.geometry.window_start(LENGTH - 10) == 832
    starts[:] = 832
    chosen = method.select_question(0, q, starts, step)
    # 990 to 999 lie in one block of 64, so they share a list, as all heads do.
    assert (chosen == chosen[:1, :1]).all()
    assert chosen[0, 0].tolist() == select_by_hand(q, k, 832, config, by_index)
    alone = method.select_token(0, q[0], pass_at(runner, filled_store(runner, k), method, 990))
    assert alone is not None
    assert alone[1].tolist() == select_by_hand(q[:1], k, 832, config, by_index)


def test_first_layers_select_more(runner: Runner) -> None:
    method = HipPaperMethod(
        dataclasses.replace(CONFIG, first_layers=1, first_layers_factor=2, second_kept_tokens=128)
    )
    k = torch.randn(LENGTH, 2, runner.layout.head_dim)
    store = filled_store(runner, k)
    store.append(1, 0, k, k)
    q = torch.randn(runner.num_heads, runner.layout.head_dim)
    step = pass_at(runner, store, method, 999)
    widths = [method.select_token(layer, q, step).shape[1] for layer in (0, 1)]
    assert widths == [128 // 8, 64 // 8]


def test_halving_walks_past_a_single_key(runner: Runner) -> None:
    """One key that the query wants at every place of a chunk: few are found in all stages.

    With nothing else to see both halves score 0, and a tie goes right: what is found lies near the
    end of the chunk.
    """
    dim = runner.layout.head_dim
    config = dataclasses.replace(CONFIG, budget_tokens=64, first_kept_tokens=128)
    config = dataclasses.replace(config, second_kept_tokens=64)
    wanted = torch.randn(dim, generator=torch.Generator().manual_seed(1))
    q = turned(wanted, -(config.window_tokens + 1)).float().expand(runner.num_heads, -1)
    found = set()
    for offset in range(64):
        k = torch.zeros(LENGTH, 2, dim)
        k[320 + offset, 0] = wanted
        method = HipPaperMethod(config)
        blocks = method.select_token(0, q, pass_at(runner, filled_store(runner, k), method, 999))
        if (320 + offset) // 8 in blocks[0].tolist():
            found.add(offset)
    assert {60, 62, 63} <= found and len(found) < 16


def test_stages_run_again_after_16_8_and_4_tokens(runner: Runner) -> None:
    method = HipPaperMethod(CONFIG)
    kept = [method._stages_to_keep(step) for step in range(17)]
    assert kept == [0, 3, 3, 3, 2, 3, 3, 3, 1, 3, 3, 3, 2, 3, 3, 3, 0]


def test_between_two_runs_the_list_is_kept_and_a_moved_window_makes_a_new_one(
    runner: Runner,
) -> None:
    k = torch.randn(LENGTH, 2, runner.layout.head_dim)
    method = HipPaperMethod(CONFIG)
    store = filled_store(runner, k)
    lists = []
    for position in range(950, 966):
        q = torch.randn(
            runner.num_heads,
            runner.layout.head_dim,
            generator=torch.Generator().manual_seed(position),
        )
        lists.append(method.select_token(0, q, pass_at(runner, store, method, position)))
    same = [torch.equal(a, b) for a, b in zip(lists[:-1], lists[1:], strict=True)]
    # 960 begins a page; 954 and 958 are 4 and 8 tokens after 950, 964 is 4 after 960.
    assert [950 + n + 1 for n, equal in enumerate(same) if not equal] == [954, 958, 960, 964]


def test_an_answer_goes_on_alike_after_a_rewind(runner: Runner) -> None:
    ids, method = random_ids(700), HipPaperMethod(CONFIG)
    store = runner.new_store(700)
    runner.forward(ids[:500], StepInput(store, runner.tables, PrefillPass(method), 0))
    tail, rows = store.tail(), []
    for _ in range(2):
        method.reset()
        logits = []
        for position in range(500, 540):
            step = StepInput(store, runner.tables, AnswerPass(method), position)
            logits.append(runner.logits(ids[position : position + 1], step)[-1])
        rows.append(torch.stack(logits))
        store.rewind(tail)
    torch.testing.assert_close(rows[1], rows[0], rtol=0, atol=0)
