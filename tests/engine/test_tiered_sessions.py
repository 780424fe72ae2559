"""Sessions of a store of three tiers: written and read by any other kind of store, and faults."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest
import torch

from hipcli.engine.checked import CheckedAnswer
from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError, DoesNotFitError
from hipcli.engine.events import Detail, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.reporting import tiers_told
from hipcli.engine.sessions import SessionStore
from hipcli.engine.store import slabs
from hipcli.engine.store.copying import staging
from hipcli.engine.store.layout import num_pages
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.tiered import TieredMemory
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan
from tests.engine.test_session_integrity import flip, notices
from tests.engine.test_sessions import CHUNK, IDENTITY, answer, answerer_of, read, request
from tests.engine.tiny import tiny_hip, tiny_model

# Pages that tiny_hip needs at once: two of a chunk, sinks, window, candidates, some to spare.
SLOTS = 16


def tiered(disk_pages: int = 0, folder: Path = Path("/tmp")) -> Runner:
    runner = Runner(tiny_model("llama"), backend="reference")
    limit = HostLimit(1 << 30, folder)

    def plan(_: object, tokens: int) -> TierPlan | None:
        pages = num_pages(tokens)
        return TierPlan(SLOTS, pages, 2, disk_pages, limit) if pages > SLOTS else None

    runner.tiers = plan
    return runner


@pytest.fixture(scope="module")
def runners() -> dict[str, Runner]:
    return {
        "host": Runner(tiny_model("llama")),
        "device": Runner(tiny_model("llama"), backend="reference"),
        "tiers": tiered(),
        "disk": tiered(10),
    }


@pytest.mark.parametrize(
    "writer, reader",
    [("host", "tiers"), ("tiers", "host"), ("device", "disk"), ("disk", "device"), ("tiers",) * 2],
)
@pytest.mark.parametrize("length", [1100, 1152])
def test_sessions_serve_both(
    runners: dict[str, Runner], tmp_path: Path, writer: str, reader: str, length: int
) -> None:
    ask = request(tmp_path, length=length)
    first, _ = read(runners[writer], ask)
    assert first.store.tiered == (writer in ("tiers", "disk"))
    expected = answer(runners[writer], first, ask)
    store = SessionStore(tmp_path)
    store.verify(store.find())
    warm, _ = read(runners[reader], ask)
    assert warm.session.reused and warm.cached_tokens == length
    assert answer(runners[reader], warm, ask) == expected
    # The question must not have reached the files.
    store.verify(store.find())
    again, _ = read(runners[writer], ask)
    assert answer(runners[writer], again, ask) == expected


def test_a_pruned_session_and_one_pruned_in_memory(
    runners: dict[str, Runner], tmp_path: Path
) -> None:
    answers = []
    for name in ("device", "tiers", "disk"):
        cache = CacheConfig(tmp_path / name, keep=0.8)
        ask = request(None, length=1400, cache=cache)
        first, _ = read(runners[name], ask)
        answers.append(answer(runners[name], first, ask))
        assert first.session.kept_ratio < 1
        warm, _ = read(runners[name], ask)
        assert warm.session.reused
        answers.append(answer(runners[name], warm, ask))
    assert all(one == answers[0] for one in answers)


def test_interrupted_reading_goes_on_elsewhere(runners: dict[str, Runner], tmp_path: Path) -> None:
    ask = request(tmp_path, length=1200)
    plain = dataclasses.replace(ask, cache=CacheConfig(None))
    expected = answer(runners["device"], read(runners["device"], plain)[0], plain)
    for done, name in ((4, "device"), (7, "disk"), (8, "host")):
        stream = ContextReader(runners[name], tiny_hip(), ask, IDENTITY, CHUNK, 64).read()
        for event in stream:
            if isinstance(event, Progress) and event.done_tokens >= done * CHUNK:
                break
        stream.close()
    context, _ = read(runners["tiers"], ask)
    assert context.cached_tokens >= 6 * CHUNK
    assert answer(runners["tiers"], context, ask) == expected


@pytest.mark.parametrize("name", ["tiers", "disk"])
def test_damage_is_noticed(runners: dict[str, Runner], tmp_path: Path, name: str) -> None:
    ask = request(tmp_path, length=1200)
    first, _ = read(runners["device"], ask)
    expected = answer(runners["device"], first, ask)
    page_bytes = runners[name].layout.page_bytes
    flip(SessionStore(tmp_path).find().path / "kv/001.pages", 9 * page_bytes + 5)
    runner = runners[name]
    reader = ContextReader(runner, tiny_hip(), ask, IDENTITY, CHUNK, 64)
    checked = CheckedAnswer(reader, lambda store: answerer_of(runner, Context(store), ask))
    events = list(checked.events())
    assert "session_damaged" in notices(events)
    assert [event for event in events if isinstance(event, int)] == expected


def test_a_file_cut_while_it_is_used(runners: dict[str, Runner], tmp_path: Path) -> None:
    ask = request(tmp_path, length=1200)
    read(runners["device"], ask)
    context, _ = read(runners["disk"], ask)
    os.truncate(SessionStore(tmp_path).find().path / "kv/001.pages", 3000)
    with pytest.raises(DamagedSessionError, match="cannot be read"):
        answer(runners["disk"], context, ask)


def test_reads_and_writes_cut_short_go_on(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may move less than it was asked to: the rest follows, byte for byte."""
    ask = request(None, length=1200)
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)
    preadv, pwrite, moved = os.preadv, os.pwrite, []

    def read_some(fd: int, buffers: list[memoryview], offset: int) -> int:
        moved.append("in")
        return preadv(fd, [buffers[0][:1000]], offset)

    def write_some(fd: int, data: memoryview, offset: int) -> int:
        moved.append("out")
        return pwrite(fd, data[:1000], offset)

    monkeypatch.setattr(os, "preadv", read_some)
    monkeypatch.setattr(os, "pwrite", write_some)
    context, _ = read(tiered(10, tmp_path), ask)
    assert answer(runners["disk"], context, ask) == expected
    assert {"in", "out"} == set(moved)


def test_a_disk_that_cannot_be_read(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage like any other: what a session has is read anew from the documents."""
    ask = request(tmp_path, length=1200)
    first, _ = read(runners["device"], ask)
    expected = answer(runners["device"], first, ask)
    preadv, failing = os.preadv, True

    def broken(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal failing
        if failing:
            failing = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, offset)

    runner = runners["disk"]
    reader = ContextReader(runner, tiny_hip(), ask, IDENTITY, CHUNK, 64)
    checked = CheckedAnswer(reader, lambda store: answerer_of(runner, Context(store), ask))
    told = []
    for event in checked.events():
        told.append(event)
        if getattr(event, "name", "") == "answer" and failing:
            monkeypatch.setattr(os, "preadv", broken)
    assert not failing and "session_damaged" in notices(told)
    assert [event for event in told if isinstance(event, int)] == expected


def test_without_a_session_a_file_of_its_own(runners: dict[str, Runner], tmp_path: Path) -> None:
    ask = request(None, length=1200)
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)
    runner = tiered(10, tmp_path)
    context, events = read(runner, ask)
    assert notices(events) == ["kv_on_disk"]
    assert answer(runner, context, ask) == expected
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_refused_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DoesNotFitError, match="No space left"):
        read(tiered(10, tmp_path), request(None, length=1200))


def test_a_disk_that_fills_while_reading(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies on the disk alone would be lost; what memory holds is not."""

    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    ask = request(None, length=1200)
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DoesNotFitError, match="No space left"):
        read(tiered(10, tmp_path), ask)
    saving = dataclasses.replace(ask, cache=CacheConfig(tmp_path / "cache"))
    context, events = read(runners["tiers"], saving)
    assert notices(events) == ["cache_unwritable"]
    assert answer(runners["tiers"], context, ask) == expected


def test_memory_that_cannot_be_pinned(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said once, and everything goes by way of the host."""
    ask = request(None, length=1200)
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)
    monkeypatch.setattr(slabs, "pins", lambda device: True)
    monkeypatch.setattr(slabs, "pin", lambda memory, device: "error 2")
    context, _ = read(runners["tiers"], ask)
    assert context.store.tiered and not context.store.fetches_in_graphs
    assert answer(runners["tiers"], context, ask) == expected
    told = list(tiers_told(context.store))
    assert notices(told) == ["memory_not_pinned"] and isinstance(told[-1], Detail)


def test_memory_of_which_a_part_is_pinned(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses the fourth slab; no slab after it is asked for."""
    ask, refusals = request(None, length=1200), []
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)

    def pin(memory: torch.Tensor, device: torch.device) -> str:
        refusals.append("error 2" if len(refusals) == 3 else "")
        return refusals[-1]

    monkeypatch.setattr(slabs, "pins", lambda device: True)
    monkeypatch.setattr(slabs, "pin", pin)
    monkeypatch.setattr(slabs, "_release", lambda thread, pinned: thread.shutdown(wait=True))
    context, _ = read(runners["tiers"], ask)
    assert answer(runners["tiers"], context, ask) == expected
    assert refusals == ["", "", "", "error 2"] and context.store.unpinned == "error 2"
    assert not context.store.fetches_in_graphs


def test_a_buffer_that_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def refusing(*arguments: object, pin_memory: bool = False, **named: object) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*arguments, **named)

    monkeypatch.setattr(torch, "empty", refusing)
    buffer = staging((3, 5), torch.device("cuda"))
    assert buffer.shape == (3, 5) and not buffer.is_pinned()


def test_a_gpu_that_runs_out_of_memory(
    runners: dict[str, Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter chunks, then fewer slots; at last it is said, and the session stays as it was."""
    ask, runner = request(None, length=1200), runners["tiers"]
    expected = answer(runners["device"], read(runners["device"], ask)[0], ask)
    written_through, most = TieredStore.written_through, 64

    def short(store: TieredStore, layer: int, start: int, end: int) -> None:
        written_through(store, layer, start, end)
        if layer == 1 and start > 400 and end - start > most:
            raise torch.cuda.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(TieredStore, "written_through", short)
        context, events = read(runner, ask)
        assert notices(events) == ["shorter_chunks"]
        most = 0
        saved = request(tmp_path, length=1200)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            read(runner, saved)
    assert answer(runner, context, ask) == expected
    context, _ = read(runner, saved)
    assert context.cached_tokens == 384
    assert answer(runner, context, saved) == expected


def test_fewer_slots_than_planned(
    runners: dict[str, Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, room = TieredMemory.__init__, 12

    def short(memory: TieredMemory, layout, capacity, device, plan, backend) -> None:
        if plan.slots > room:
            raise torch.cuda.OutOfMemoryError
        made(memory, layout, capacity, device, plan, backend)

    monkeypatch.setattr(TieredMemory, "__init__", short)
    assert runners["tiers"].new_store(1200).plan.slots == 12
    room = 0
    with pytest.raises(DoesNotFitError, match="1,200 tokens"):
        runners["tiers"].new_store(1200)
