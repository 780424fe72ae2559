"""InfLLM: which blocks are found, at which distance, and what a session keeps."""

import dataclasses
from pathlib import Path

import pytest
import torch

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError, SessionError, UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import InfLLMConfig
from hipcli.engine.methods.infllm import InfLLMMethod, InfLLMState
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.companion import FILE
from hipcli.engine.sessions.pruning import prune
from hipcli.engine.sessions.verify import verify_folder
from tests.engine.methods.stores import filled_store, make_runner, pass_at, turned
from tests.engine.test_session_integrity import notices
from tests.engine.test_sessions import request
from tests.engine.tiny import random_ids

CONFIG = InfLLMConfig(
    sink_tokens=64,
    window_tokens=128,
    budget_tokens=128,
    block_tokens=64,
    representatives=2,
    query_block_tokens=64,
)
LENGTH = 700


@pytest.fixture(scope="module")
def runner() -> Runner:
    return make_runner()


def by_hand(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, dict[int, list[int]]]:
    """The method in fp64, one query and head at a time, as the paper tells it.

    Returns:
        out [T, num_heads, head_dim], and which blocks were retrieved for each block of queries.
    """
    length, heads, dim = q.shape
    group, window = heads // k.shape[1], CONFIG.window_tokens
    received = torch.zeros(heads, length, dtype=torch.float64)
    representatives: list[torch.Tensor] = []
    out = torch.zeros(length, heads, dim, dtype=torch.float64)
    chosen_at: dict[int, list[int]] = {}
    for first in range(0, length, 64):
        end = min(first + 64, length)
        mean = turned(q[first:end], window - 1).mean(0).flatten()
        scores = [float(mean @ vector.flatten()) for vector in representatives]
        order = sorted(range(len(scores)), key=lambda n: -scores[n])[:2]
        chosen_at[first] = sorted(order)
        sealed_end = 64 + 64 * len(representatives)
        for i in range(first, end):
            keys = [
                j
                for j in range(i + 1)
                if j < 64 or j >= sealed_end or (j - 64) // 64 in chosen_at[first]
            ]
            for head in range(heads):
                rows = k[keys, head // group].double()
                distance = i - torch.tensor(keys)
                near = distance < window
                local = turned(q[i, head].expand(len(keys), -1), distance)
                far = turned(q[i, head], window - 1).expand_as(local)
                logits = (torch.where(near[:, None], local, far) * rows).sum(-1) * scale
                weights = logits.softmax(0)
                out[i, head] = weights @ v[keys, head // group].double()
                received[head, keys] += weights * near
        while 64 + 64 * (len(representatives) + 1) <= end - window:
            start = 64 + 64 * len(representatives)
            best = received[:, start : start + 64].topk(2).indices + start
            representatives.append(
                torch.stack([k[best[h], h // group].double().mean(0) for h in range(heads)])
            )
    return out, chosen_at


def test_equals_the_paper_told_query_by_query(runner: Runner) -> None:
    generator = torch.Generator().manual_seed(4)
    dim, length = runner.layout.head_dim, 460
    k, v = (torch.randn(length, 2, dim, generator=generator) for _ in range(2))
    q = torch.randn(length, runner.num_heads, dim, generator=generator)
    method = InfLLMMethod(CONFIG)
    step = pass_at(runner, filled_store(runner, k, v), method, 0)
    out = step.attention.attend(0, q, step)
    expected, chosen = by_hand(q, k, v, step.softmax_scale)
    assert len(chosen[448]) == 2 and chosen[448] != [0, 1]
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_key_that_received_attention_stands_for_its_block(runner: Runner) -> None:
    """One key of block 2 draws all later queries in its window; every other key is 0."""
    dim = runner.layout.head_dim
    k = torch.zeros(512, 2, dim)
    k[200] = 5.0
    q = torch.ones(512, runner.num_heads, dim)
    method = InfLLMMethod(dataclasses.replace(CONFIG, representatives=1))
    store = filled_store(runner, k)
    step = pass_at(runner, store, method, 0)
    step.attention.attend(0, q, step)
    kept = store.companion.layers[0]
    assert kept.sealed == (512 - 128 - 64) // 64
    norms = kept.representatives[: kept.sealed].norm(dim=-1)
    assert (norms[2] > 0).all() and (norms[[0, 1, 3, 4]] == 0).all()


def read(runner: Runner, ask, method: InfLLMMethod) -> tuple[Context, list]:
    reader = ContextReader(runner, method, ask, {"weights": "w"}, 128, 100)
    events, stream = [], reader.read()
    while True:
        try:
            events.append(next(stream))
        except StopIteration as stop:
            return stop.value, events


def answer(runner: Runner, context: Context, ask, method: InfLLMMethod) -> list[int]:
    answerer = Answerer(
        runner,
        method,
        context.store,
        ask,
        budget_tokens=128,
        vote_distance_tokens=200,
        separator_ids=[11],
        stop_ids=frozenset(),
    )
    return list(answerer.tokens())


@pytest.mark.parametrize("mode", ["attend", "share"])
def test_a_resumed_session_answers_as_the_first_time(
    runner: Runner, tmp_path: Path, mode: str
) -> None:
    ask = request(tmp_path, length=LENGTH, answer=mode, question_ids=list(range(20, 90)))
    method = InfLLMMethod(CONFIG)
    first, _ = read(runner, ask, method)
    tail = first.store.tail()
    expected = answer(runner, first, ask, method)
    # A second question on the same store: what the first one left is forgotten.
    first.store.rewind(tail)
    assert answer(runner, first, ask, method) == expected
    warm, _ = read(runner, ask, InfLLMMethod(CONFIG))
    assert warm.session.reused and warm.cached_tokens == LENGTH
    assert isinstance(warm.store.companion, InfLLMState)
    assert answer(runner, warm, ask, InfLLMMethod(CONFIG)) == expected


@pytest.mark.parametrize("harm", ["flip", "missing", "empty"])
def test_without_its_representatives_a_session_is_read_again(
    runner: Runner, tmp_path: Path, harm: str
) -> None:
    ask = request(tmp_path, length=LENGTH)
    method = InfLLMMethod(CONFIG)
    expected = answer(runner, read(runner, ask, method)[0], ask, method)
    path = SessionStore(tmp_path).find().path / FILE
    if harm == "missing":
        path.unlink()
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    context, events = read(runner, ask, method)
    assert notices(events) == ["session_damaged"] and not context.cached_tokens
    assert answer(runner, context, ask, method) == expected


def test_nothing_of_it_is_pruned(runner: Runner, tmp_path: Path) -> None:
    ask = request(tmp_path, length=LENGTH, cache=CacheConfig(tmp_path, keep=0.5))
    with pytest.raises(UsageError, match="--keep"):
        read(runner, ask, InfLLMMethod(CONFIG))
    whole = request(tmp_path, length=LENGTH, cache=CacheConfig(tmp_path))
    read(runner, whole, InfLLMMethod(CONFIG))
    store = SessionStore(tmp_path)
    with pytest.raises(SessionError, match="method"):
        prune(store, store.find(), 0.5)
    assert verify_folder(store.find().path) == LENGTH
    (store.find().path / FILE).write_bytes(b"")
    with pytest.raises(DamagedSessionError):
        verify_folder(store.find().path)


def test_an_interrupted_reading_begins_again(runner: Runner, tmp_path: Path) -> None:
    ask = request(tmp_path, length=LENGTH)
    plain = request(None, length=LENGTH)
    method = InfLLMMethod(CONFIG)
    expected = answer(runner, read(runner, plain, method)[0], plain, method)
    stream = ContextReader(runner, method, ask, {"weights": "w"}, 128, 100).read()
    for event in stream:
        if getattr(event, "done_tokens", 0) >= 384:
            break
    stream.close()
    context, _ = read(runner, ask, method)
    assert context.cached_tokens == 0
    assert answer(runner, context, ask, method) == expected


def test_after_a_rewind_everything_is_as_before(runner: Runner) -> None:
    ids, method = random_ids(LENGTH), InfLLMMethod(CONFIG)
    store = runner.new_store(LENGTH)
    step = StepInput(store, runner.tables, PrefillPass(method), 0)
    runner.forward(ids[:450], step)
    tail, rows = store.tail(), []
    for _ in range(2):
        logits = []
        for position in range(450, 530):
            step = StepInput(store, runner.tables, AnswerPass(method), position)
            logits.append(runner.logits(ids[position : position + 1], step)[-1])
        rows.append(torch.stack(logits))
        store.rewind(tail)
    torch.testing.assert_close(rows[1], rows[0], rtol=0, atol=0)


def test_a_gap_is_refused(runner: Runner) -> None:
    method = InfLLMMethod(CONFIG)
    store = runner.new_store(LENGTH)
    runner.forward(random_ids(256), StepInput(store, runner.tables, PrefillPass(method), 0))
    store.truncate(128)
    step = StepInput(store, runner.tables, PrefillPass(method), 128)
    with pytest.raises(ValueError, match="infllm cannot go on at token 128"):
        runner.forward(random_ids(64), step)
