"""Sessions of a store of three tiers: written and read by any other kind of store, and faults."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from hipcli.engine.checked import CheckedAnswer
from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError, DoesNotFitError
from hipcli.engine.events import Detail, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.reporting import tiers_told
from hipcli.engine.sessions import SessionStore
from hipcli.engine.store import slabs
from hipcli.engine.store.layout import num_pages
from hipcli.engine.store.limits import HostLimit
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
