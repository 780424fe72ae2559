"""A rank takes memory for its own pages alone: as on a GPU, on the reference kernels."""

import dataclasses
import mmap
from functools import cache

import numpy as np
import pytest
import torch

from hipcli.engine.answering.second_look import SecondLook
from hipcli.engine.distributed import own_pages
from hipcli.engine.distributed.driver import driven_passes
from hipcli.engine.distributed.engine import SharedReader
from hipcli.engine.distributed.placement import Placement, most_pages
from hipcli.engine.distributed.slots import OwnSlots
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.forward.runner import Runner
from tests.engine.distributed.test_equality import answer, read
from tests.engine.distributed.threads import threads
from tests.engine.test_sessions import IDENTITY, answerer_of, request
from tests.engine.test_sessions import read as read_alone
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

# Its last page is full after the question, so that it can be moved in the answer.
CONTEXT = 64 * 6 + 38
CAPACITY = CONTEXT + 200
KV_DTYPES = ["auto", "int8", "fp8_e4m3"]
OWNERS = {
    "interleaved": [0, 1, 2, 3],
    "lent": [2, 2, 2, 0, 0, 0, 3],
    "empty": [1],
}


def made(kv_dtype: str, backend: str = "reference") -> Runner:
    runner = Runner(tiny_model("llama"), kv_dtype, backend=backend)
    # Threads must not grow them at once.
    runner.tables.ensure(2048)
    return runner


@pytest.fixture(scope="module")
def runners() -> dict[str, Runner]:
    return {kv_dtype: made(kv_dtype) for kv_dtype in KV_DTYPES}


def placed(name: str, size: int) -> list[int]:
    pages = -(-CAPACITY // 64)
    return [min(owner, size - 1) for owner in (OWNERS[name] * pages)[:pages]]


def held_bytes(store) -> int:
    """What the tensors of a store take, keys, values, scales and summaries."""
    tensors = [*store.pages, *(index.summaries for index in store._index)]
    return sum(x.untyped_storage().nbytes() for x in tensors)


@cache
def whole(runner):
    """An answer of one rank, and the same once more after going back to the context."""
    ids, method = random_ids(CONTEXT), tiny_hip()
    store = runner.new_store(CAPACITY)
    read(runner, method, store, ids)
    tail = store.tail()
    first = answer(runner, method, store, ids, "attend")
    store.rewind(tail)
    return first, answer(runner, method, store, ids, "attend")


@pytest.mark.parametrize(
    "kv_dtype, size, name",
    [
        ("auto", 2, "interleaved"),
        ("auto", 3, "empty"),
        ("int8", 2, "interleaved"),
        ("fp8_e4m3", 4, "lent"),
    ],
)
def test_answers_are_those_of_one_rank(runners, kv_dtype, size, name):
    """Also once pages have moved, the half-filled one that is gone back to included."""
    runner, method, ids = runners[kv_dtype], tiny_hip(), random_ids(CONTEXT)
    moves = [([0, 3], 1), (list(range(5)), size - 1), ([6], 1), ([6, 0], 0)]
    with threads(runner, method, size) as driven:
        store = driven.new_shared_store(CAPACITY, placed(name, size))
        read(driven, method, store, ids)
        tail, passes = store.tail(), driven_passes(driven.team)
        first = answer(driven, method, store, ids, "attend", moves=moves, passes=passes)
        store.rewind(tail)
        told = first, answer(driven, method, store, ids, "attend", passes=passes)
    assert told == whole(runner)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_holds_its_part_of_the_bytes(runners, kv_dtype, size):
    runner, shards = runners[kv_dtype], []
    tokens = 64 * 64
    alone = held_bytes(runner.new_store(tokens))
    assert alone == runner.layout.num_bytes(tokens)
    with threads(runner, tiny_hip(), size, all_shards=shards) as driven:
        store = driven.new_shared_store(tokens)
        stores = [shard.stores[store.handle] for shard in shards]
        assert [held_bytes(one) for one in stores] == [alone // size] * size
        # A page that comes takes memory, one that goes leaves a place for the next.
        read(driven, tiny_hip(), store, random_ids(300))
        store.move_pages([1], 0)
        grown = held_bytes(store)
        assert alone // size < grown < alone // size * 9 / 8
        store.move_pages([0], 1)
        assert [held_bytes(one) for one in stores] == [grown] + [alone // size] * (size - 1)


def present_bytes(x: torch.Tensor) -> int:
    """What of a tensor's memory was ever touched; 0 where the system does not tell."""
    first, count = x.data_ptr() // mmap.PAGESIZE, -(-x.nbytes // mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * 8)
            entries = np.frombuffer(file.read(count * 8), dtype=np.uint64)
    except OSError:
        return 0
    return int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_rank_on_a_cpu_touches_its_part(kv_dtype):
    """There memory is taken by what is written, and the tensors are addresses."""
    runner, shards, tokens = made(kv_dtype, "cpu"), [], 64 * 64
    with threads(runner, tiny_hip(), 4, all_shards=shards) as driven:
        store = driven.new_shared_store(tokens)
        k = torch.randn(tokens, runner.layout.num_kv_heads, runner.layout.head_dim)
        touched = []
        for shard in shards:
            own = shard.stores[store.handle]
            own.append(0, 0, k, k)
            touched.append(present_bytes(own._memory.records[0]))
    if not touched[0]:
        pytest.skip("the system does not say what is resident")
    part = 16 * runner.layout.page_bytes
    # The system gives memory in pages of its own, two of which each of ours may share.
    assert all(part <= num_bytes <= part + 33 * mmap.PAGESIZE for num_bytes in touched), touched


def test_what_does_not_fit_one_rank_fits_two(runners, monkeypatch):
    """And a page is sent only where there is room for it."""
    runner, method, ids = runners["auto"], tiny_hip(), random_ids(CONTEXT)
    limit = runner.layout.num_bytes(CAPACITY) * 6 // 10

    def check(layout, tokens, device):
        if layout.num_bytes(tokens) > limit:
            raise DoesNotFitError("no room", "more ranks")

    monkeypatch.setattr(own_pages, "check_kv_fits", check)
    with threads(runner, method, 1) as driven, pytest.raises(DoesNotFitError, match="no room"):
        driven.new_shared_store(CAPACITY)
    with threads(runner, method, 2) as driven:
        store = driven.new_shared_store(CAPACITY)
        read(driven, method, store, ids)
        limit = 0
        with pytest.raises(DoesNotFitError, match="no room"):
            store.move_pages([0], 1)
        told = answer(driven, method, store, ids, "attend", passes=driven_passes(driven.team))
    assert told == whole(runner)[0]


def drained(stream):
    while True:
        try:
            next(stream)
        except StopIteration as stop:
            return stop.value


def ask_ranks(runner, size, asked):
    """The context as several ranks have it, and their answer."""
    with threads(runner, tiny_hip(), size) as driven:
        context = drained(SharedReader(driven, tiny_hip(), asked, IDENTITY, 128, 64).read())
        answerer = answerer_of(driven, context, asked)
        answerer = dataclasses.replace(answerer, passes=driven_passes(driven.team))
        return context.session, list(answerer.tokens())


def ask_alone(runner, asked):
    context, _ = read_alone(runner, asked)
    return context.session, list(answerer_of(runner, context, asked).tokens())


@pytest.mark.parametrize(
    "kv_dtype, backend, length",
    [("auto", "reference", 448), ("fp8_e4m3", "reference", 420), ("int8", "cpu", 420)],
)
def test_sessions_of_any_number_of_ranks(tmp_path, kv_dtype, backend, length):
    """4 write what 1 and 3 read, and 1 writes what 2 read."""
    runner = made(kv_dtype, backend)
    asked = request(tmp_path / "four", length=length, answer="attend")
    first, told = ask_ranks(runner, 4, asked)
    assert first.complete and not first.reused
    for session, again in (ask_alone(runner, asked), ask_ranks(runner, 3, asked)):
        assert session.reused and session.id == first.id and again == told
    asked = request(tmp_path / "one", length=length, answer="attend")
    _, expected = ask_alone(runner, asked)
    session, again = ask_ranks(runner, 2, asked)
    assert session.reused and expected == again == told


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_second_look_sees_pages_of_all_ranks(runners, kv_dtype):
    runner, method, ids = runners[kv_dtype], tiny_hip(), random_ids(CONTEXT)
    looked = [0, 2, 3, CONTEXT // 64]
    question, words = random_ids(9, seed=5), (2, 7)
    alone = runner.new_store(CAPACITY)
    read(runner, method, alone, ids)
    expected = SecondLook(runner, method, alone, CONTEXT, 10).at(looked, question, words)
    with threads(runner, method, 3) as driven:
        store = driven.new_shared_store(CAPACITY)
        read(driven, method, store, ids)
        store.move_pages([2, 3], 0)
        seen = SecondLook(driven, method, store, CONTEXT, 10).at(looked, question, words)
    torch.testing.assert_close(seen.likelihoods, expected.likelihoods, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(seen.attention, expected.attention, atol=1e-3, rtol=1e-3)


def test_slots_follow_one_another_and_are_used_again():
    slots = OwnSlots(Placement.of([0, 1] * 8, 1, 2), fixed=False)
    assert slots.count == 8 and slots.short_of(1) == 1
    # Pages 1, 3, 5, .. stand side by side: what a chunk writes is one run.
    assert slots.written(70, 64 * 9) == [(6, 64 * 4)]
    assert slots.written(64 * 4, 64 * 5) == []
    assert list(slots.runs(torch.tensor([3, 5, 9]))) == [([3, 5], 1), ([9], 4)]
    slots.leave([5])
    assert slots.short_of(1) == 0
    slots.take([4])
    assert slots.of[:6].tolist() == [-1, 0, -1, 1, 2, -1]
    slots.grown(2)
    slots.take([0, 2])
    assert slots.of[[0, 2]].tolist() == [8, 9]


def test_the_rank_with_most_pages():
    assert most_pages("interleaved", 5, 2) == most_pages("contiguous", 5, 2) == 3
    assert most_pages("interleaved", 0, 2) == 0
