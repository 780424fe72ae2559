"""Ranks as processes: sessions that any number of them reads and writes, and ranks that go."""

import dataclasses
import json
import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hipcli.engine.config import CacheConfig
from hipcli.engine.distributed.control import Address, RankLostError
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.events import Progress
from hipcli.engine.sessions import SessionStore
from hipcli.engine.threads import usable_cores
from tests.engine.distributed.processes import (
    TOKENS,
    Forked,
    ForkedCrew,
    alone,
    be_rank,
    be_rank_0_until_it_reads,
    be_rank_that_never_comes,
    be_rank_that_stops,
    config,
    engine,
    free_port,
    request,
    together,
)
from tests.engine.models import toy_models


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return toy_models.llama(tmp_path_factory.mktemp("model") / "toy")


def told(result) -> tuple:
    return result.answer, result.mode, [e.start_token for e in result.evidence]


@pytest.mark.parametrize("size", [2, 3])
def test_processes_answer_as_one(model, tmp_path, size):
    for mode in ("attend", "share"):
        asked = request(None, answer=mode)
        assert told(together(model, tmp_path, size, asked)) == told(alone(model, asked))


def test_a_limit_is_each_ranks_and_two_hold_what_one_does_not(model, tmp_path):
    """In int8, and with a second look at the best pages."""
    asked, changes = request(None), {"kv_dtype": "int8"}
    expected = alone(model, asked, **changes)
    runner = Engine.open(config(model, **changes)).runner
    weights = sum({p.data_ptr(): p.nbytes for p in runner.model.parameters()}.values())
    changes["host_memory_bytes"] = weights + runner.layout.num_bytes(TOKENS * 6 // 10)
    with pytest.raises(DoesNotFitError, match="on one rank"):
        together(model, tmp_path, 1, asked, **changes)
    assert told(together(model, tmp_path, 2, asked, **changes)) == told(expected)


def test_a_session_of_four_ranks_serves_one(model, tmp_path):
    asked = request(tmp_path / "cache")
    written = together(model, tmp_path, 4, asked)
    assert written.session.complete and not written.session.reused
    (record,) = SessionStore(tmp_path / "cache").list()
    read = alone(model, asked)
    assert read.session.id == written.session.id and read.session.reused
    assert read.cached_tokens == len(asked.context_ids)
    assert told(read) == told(written) == told(alone(model, request(None)))
    worth = json.loads((record.path / "worth.json").read_text())["worth"]
    again = request(tmp_path / "other")
    alone(model, again)
    (other,) = SessionStore(tmp_path / "other").list()
    expected = json.loads((other.path / "worth.json").read_text())["worth"]
    assert worth == pytest.approx(expected, abs=1e-3)


def test_a_session_of_one_rank_serves_three(model, tmp_path):
    asked = request(tmp_path / "cache")
    written = alone(model, asked)
    read = together(model, tmp_path, 3, asked)
    assert read.session.reused and read.cached_tokens == len(asked.context_ids)
    assert told(read) == told(written)


def test_a_damaged_page_of_another_rank_is_read_again(model, tmp_path):
    asked = request(tmp_path / "cache")
    written = alone(model, asked)
    (record,) = SessionStore(tmp_path / "cache").list()
    file = record.path / "kv" / "001.pages"
    raw = bytearray(file.read_bytes())
    # Page 1 is that of rank 1.
    raw[len(raw) // 21 + 100] ^= 1
    file.write_bytes(bytes(raw))
    read = together(model, tmp_path, 2, asked)
    assert not read.session.reused
    assert told(read) == told(written)


def lose(opened: DistributedEngine, asked, chunks: int, act) -> tuple[RankLostError, float]:
    """Ask, and do something once so many chunks are read: the error, and seconds until it came."""
    count, acted = 0, 0.0
    try:
        for event in opened.ask(asked):
            if isinstance(event, Progress) and event.phase == "prefill":
                count += 1
            if count == chunks + 1 and not acted:
                act()
                acted = time.monotonic()
    except RankLostError as error:
        opened.close(error)
        return error, time.monotonic() - acted
    raise AssertionError("the answer came without one of the ranks")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_all_and_the_session_goes_on(model, tmp_path, number):
    asked = request(tmp_path / "cache")
    opened = engine(model, tmp_path, 3, stall_s=3)
    pids: list[int] = []

    def strike() -> None:
        pids.extend(opened.crew.processes)
        os.kill(pids[1], number)

    error, took_s = lose(opened, asked, 1, strike)
    assert "rank 2" in error.message and "session" in error.hint
    assert took_s < 20
    # Rank 1 said the same.
    assert "rank 2" in (tmp_path / "rank1").read_text()
    (partial,) = (tmp_path / "cache").rglob("*.partial")
    done = json.loads((partial / "progress.json").read_text())["tokens_done"]
    assert done == 768
    result = alone(model, asked)
    assert result.cached_tokens == done
    assert told(result) == told(alone(model, request(None)))


def test_ranks_of_a_torchrun_and_the_end_of_rank_0(model, tmp_path):
    """Ranks that someone else has started meet by an address; when rank 0 dies they end."""
    address = Address("127.0.0.1", free_port(), 0, 2, 0, 3)
    theirs = json.dumps(asdict(replace(address, rank=1)))
    wanted = json.dumps(asdict(config(model)), default=str)
    other = Forked(be_rank, theirs, wanted, tmp_path / "rank1")

    Forked(be_rank_0_until_it_reads, address, config(model)).wait(60)
    assert other.wait(30) == 1
    assert "rank 0" in (tmp_path / "rank1").read_text()


def test_ranks_that_someone_started_answer(model, tmp_path):
    address = Address("127.0.0.1", free_port(), 0, 2)
    theirs = json.dumps(asdict(replace(address, rank=1)))
    wanted = json.dumps(asdict(config(model)), default=str)
    other = Forked(be_rank, theirs, wanted, tmp_path / "rank1")
    opened = DistributedEngine.over(config(model), Crew(2, address))
    asked = request(None)
    *_, result = opened.ask(asked)
    opened.close()
    assert told(result) == told(alone(model, asked))
    assert other.wait(20) == 0


def test_other_weights_are_refused(model, tmp_path):
    address = Address("127.0.0.1", free_port(), 0, 2)
    theirs = json.dumps(asdict(replace(address, rank=1)))
    settings = {**config(model).method_settings, "budget_tokens": 256}
    wanted = json.dumps(asdict(config(model, method_settings=settings)), default=str)
    other = Forked(be_rank, theirs, wanted, tmp_path / "rank1")
    opened = DistributedEngine.over(config(model), Crew(2, address))
    with pytest.raises(Exception, match="another model or other settings"):
        list(opened.ask(request(None)))
    opened.close()
    assert other.wait(20) == 1


def test_a_rank_that_does_not_start_is_told(model, tmp_path):
    broken = tmp_path / "model"
    opened = engine(model, tmp_path, 2)
    opened.config = dataclasses.replace(opened.config, model=str(broken))
    with pytest.raises(RankLostError, match="rank 1 did not start"):
        list(opened.ask(request(None)))
    opened.close()


@pytest.mark.parametrize(
    ("act", "said"),
    [(be_rank_that_stops, "rank 1 was not heard of"), (be_rank_that_never_comes, "did not come")],
)
def test_a_rank_that_stands_still_before_the_first_word_is_missed(
    model, tmp_path, monkeypatch, act, said
):
    monkeypatch.setattr("hipcli.engine.distributed.joining.COME_S", 2)
    opened = engine(model, tmp_path, 2, stall_s=1)
    opened.crew.act = act
    with pytest.raises(RankLostError, match=said):
        list(opened.ask(request(None)))
    opened.close()


def test_ranks_of_one_host_share_its_cores(model):
    crew = Crew(2)
    assert crew.configured(config(model)).threads == max(1, usable_cores() // 2)
    assert crew.configured(config(model, threads=3)).threads == 3
    started = Crew(2, joined=Address("127.0.0.1", 1, 0, 2))
    assert started.configured(config(model)).threads == 0


def test_what_several_ranks_cannot_do(model, tmp_path):
    with pytest.raises(UsageError, match="quest"):
        DistributedEngine.over(config(model, method="quest", method_settings={}), Crew(2))
    opened = engine(model, tmp_path, 2)
    asked = replace(request(None), cache=CacheConfig(keep=0.5))
    with pytest.raises(UsageError, match="--keep") as caught:
        list(opened.ask(asked))
    opened.close(caught.value)


@pytest.mark.parametrize("size", [2, 3])
def test_bytes_on_the_wire_are_those_of_the_formula(model, tmp_path, size, monkeypatch):
    """As `hip bench distributed` counts them, for ranks with equal and unequal parts."""
    from hipcli.engine.benchmarks import distributed as bench

    def crew(ranks: int, one_gpu: bool = False) -> ForkedCrew:
        return ForkedCrew(ranks, one_gpu=one_gpu, folder=tmp_path)

    monkeypatch.setattr(bench, "Crew", crew)
    rows = [bench.measured(config(model), n, 64 * 12 + 7, 4) for n in (1, size)]
    assert rows[0]["answer"] == rows[1]["answer"] and all(map(bench.counted_right, rows))
    assert not bench.counted_right(rows[1] | {"reading_bytes": rows[1]["reading_bytes"] + 1})
    # 4 heads of 16 values in fp32; 2 layers, of which the last one attends nothing while reading.
    there, back = 4 * 16 * 4, 4 * (16 * 4 + 4)
    assert rows[1]["reading_bytes"] == (size - 1) * (there + back)
    assert rows[1]["answering_bytes"] == 2 * size * (size - 1) * back
