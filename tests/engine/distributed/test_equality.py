"""Any number of ranks, any partition of the pages: the outputs of one rank."""

import numpy as np
import pytest
import torch

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.config import GenerationConfig
from hipcli.engine.distributed.driver import driven_passes
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import WindowConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.window import WindowMethod
from hipcli.engine.passes import PrefillPass
from hipcli.engine.request import AskRequest
from tests.engine.distributed.threads import threads
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

CONTEXT = 64 * 13 + 17
METHODS = {
    "hip": tiny_hip,
    "dense": DenseMethod,
    "window": lambda: WindowMethod(WindowConfig(sink_tokens=64, window_tokens=128)),
}
# Owners of the pages, repeated; those of more ranks than there are belong to the last.
PARTITIONS = {
    "interleaved": [0, 1, 2, 3],
    "one page": [0] * 5 + [1] + [0] * 30,
    "empty": [1],
    "lent": [2, 2, 2, 2, 2, 1, 1, 1, 0, 0, 0, 3],
}


@pytest.fixture(scope="module")
def runner() -> Runner:
    made = Runner(tiny_model("qwen2"))
    # Threads must not grow them at once.
    made.tables.ensure(4096)
    return made


def read(runner, method, store, ids, chunk=256):
    for start in range(0, len(ids), chunk):
        step = StepInput(store, runner.tables, PrefillPass(method), start)
        runner.forward(ids[start : start + chunk], step)


def answer(runner, method, store, ids, mode, rounds=1, moves=(), passes=None, new=8):
    """Token ids of an answer, the evidence, and the fp32 logits behind the question."""
    request = AskRequest(
        context_ids=ids.numpy().astype(np.int32),
        question_ids=random_ids(24, seed=5).tolist(),
        question_span=(6, 16),
        prefix_tokens=10,
        answer=mode,
        rounds=rounds,
        generation=GenerationConfig(max_new_tokens=new),
    )
    made = {} if passes is None else {"passes": passes}
    answerer = Answerer(runner, method, store, request, 128, 200, [5], frozenset(), **made)
    told, moving = [], list(moves)
    for token in answerer.tokens():
        told.append(token)
        if moving:
            store.move_pages(*moving.pop(0))
    return told, [e.start_token for e in answerer.evidence], answerer.mode


def whole(runner, method, mode, rounds=1):
    ids = random_ids(CONTEXT)
    store = runner.new_store(CONTEXT + 600)
    read(runner, method, store, ids)
    return answer(runner, method, store, ids, mode, rounds)


def shared(runner, method, mode, size, owners, rounds=1, moves=()):
    ids = random_ids(CONTEXT)
    with threads(runner, method, size) as driven:
        capacity = CONTEXT + 600
        pages = -(-capacity // 64)
        placed = [min(owner, size - 1) for owner in (owners * pages)[:pages]]
        store = driven.new_shared_store(capacity, placed)
        read(driven, method, store, ids)
        passes = driven_passes(driven.team)
        return answer(driven, method, store, ids, mode, rounds, moves, passes)


@pytest.mark.parametrize(
    "mode, size",
    [("attend", 1), ("attend", 2), ("attend", 3), ("attend", 4), ("share", 3), ("reread", 2)],
)
def test_hip_answers_as_on_one_rank(runner, size, mode):
    method = METHODS["hip"]()
    owners = PARTITIONS["interleaved"]
    assert shared(runner, method, mode, size, owners) == whole(runner, method, mode)


def test_what_is_near_is_near_on_all_ranks(runner):
    method = tiny_hip(reach_tokens=256)
    told = shared(runner, method, "attend", 3, PARTITIONS["interleaved"])
    assert told == whole(runner, method, "attend")


@pytest.mark.parametrize("rounds", [0, 2])
def test_no_vote_and_two_rounds(runner, rounds):
    method = METHODS["hip"]()
    told = shared(runner, method, "attend", 3, PARTITIONS["interleaved"], rounds)
    assert told == whole(runner, method, "attend", rounds)


@pytest.mark.parametrize("placed", PARTITIONS)
def test_any_partition(runner, placed):
    method = METHODS["hip"]()
    told = shared(runner, method, "attend", 4, PARTITIONS[placed])
    assert told == whole(runner, method, "attend")


@pytest.mark.parametrize("name", ["dense", "window"])
def test_methods_without_a_selection(runner, name):
    method = METHODS[name]()
    told = shared(runner, method, "attend", 3, PARTITIONS["lent"])
    assert told == whole(runner, method, "attend")


@pytest.mark.parametrize("rounds", [0, 1])
def test_pages_move_in_mid_answer(runner, rounds):
    """Also the pages of the sinks, of the window and of a selection; the answer goes on."""
    method = METHODS["hip"]()
    moves = [([0, 3, 4], 1), (list(range(13)), 2), ([12, 0], 0)]
    told = shared(runner, method, "attend", 3, PARTITIONS["interleaved"], rounds, moves)
    assert told == whole(runner, method, "attend", rounds)


def test_only_whole_pages_move_and_only_to_ranks(runner):
    with threads(runner, METHODS["hip"](), 2) as driven:
        store = driven.new_shared_store(CONTEXT)
        read(driven, METHODS["hip"](), store, random_ids(CONTEXT))
        for pages, to in [([13], 0), ([-1], 0), ([2], 2)]:
            with pytest.raises(ValueError):
                store.move_pages(pages, to)


@pytest.mark.parametrize("size", [2, 4])
def test_keys_and_logits_within_rounding(runner, size):
    """Everything a context leaves behind, key by key, and the logits of a question."""
    method, ids = METHODS["hip"](), random_ids(CONTEXT)
    alone = runner.new_store(CONTEXT + 64)
    read(runner, method, alone, ids)
    with threads(runner, method, size) as driven:
        store = driven.new_shared_store(CONTEXT + 64)
        read(driven, method, store, ids)
        assert store.length == alone.length
        asked = driven_passes(driven.team).unvoted(method, (0, 8))
        logits = driven.logits(ids[:8], StepInput(store, runner.tables, asked, CONTEXT), keep=8)
        mine = store.placement.own(0, CONTEXT // 64)
        for layer in range(3):
            pages, others = store.pages[layer][mine], alone.pages[layer][mine]
            assert torch.allclose(pages, others, atol=2e-5, rtol=2e-5)
        worth = store.worth()
    from hipcli.engine.passes import UnvotedPass
    from hipcli.engine.reading.worth import page_worth

    step = StepInput(alone, runner.tables, UnvotedPass(method, (0, 8)), CONTEXT)
    alone.truncate(CONTEXT)
    assert np.allclose(worth, page_worth(alone), atol=1e-3)
    assert torch.allclose(logits, runner.logits(ids[:8], step, keep=8), atol=1e-3, rtol=1e-4)


def test_a_store_that_is_gone_is_forgotten_everywhere(runner):
    with threads(runner, METHODS["hip"](), 2) as driven:
        store = driven.new_shared_store(CONTEXT)
        tail = store.tail()
        assert len(driven.team.shard.tails) == 1
        del store, tail
        driven.new_shared_store(64)
        driven.new_shared_store(64)
        assert not driven.team.shard.tails
        assert len(driven.team.shard.stores) <= 1
