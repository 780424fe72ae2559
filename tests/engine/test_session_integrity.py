"""A saved page that is not what was written is noticed before it is used, wherever it lies."""

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.checked import CheckedAnswer
from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.events import Event, Notice, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import ContextReader
from hipcli.engine.request import AskRequest
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks, RowSums, table_bytes
from hipcli.engine.store.pages import KVStore
from tests.engine.test_sessions import (
    CHUNK,
    CONTEXT_TOKENS,
    IDENTITY,
    only_folder,
    request,
)
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

MODES = ("attend", "share", "reread")


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def answering(
    runner: Runner, asked: AskRequest, chunk: int = CHUNK, disk: Disk | None = None
) -> CheckedAnswer:
    """What answers a request."""
    attention = tiny_hip()

    def answerer_of(store: KVStore) -> Answerer:
        return Answerer(
            runner,
            attention,
            store,
            asked,
            budget_tokens=128,
            vote_distance_tokens=200,
            separator_ids=[11],
            stop_ids=frozenset(),
        )

    reader = ContextReader(runner, attention, asked, IDENTITY, chunk, 64, disk or Disk())
    keep = asked.cache.keep or 1.0
    return CheckedAnswer(reader, answerer_of, keep=1.0 if asked.cache.directory else keep)


def ask(runner: Runner, asked: AskRequest) -> tuple[list[int], CheckedAnswer, list[Event]]:
    """The answer's tokens, what gave them, and the events on the way."""
    checked = answering(runner, asked)
    seen = list(checked.events())
    tokens = [event for event in seen if isinstance(event, int)]
    return tokens, checked, [event for event in seen if not isinstance(event, int)]


def notices(events: list[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ 0x10]))


def places(runner: Runner) -> Iterator[tuple[str, int]]:
    """A byte of the keys, values and summaries of a few pages of every layer, and of each file."""
    layout = runner.layout
    for layer in range(layout.num_layers):
        for page in (0, 7, CONTEXT_TOKENS // 64):
            start = page * layout.page_bytes
            yield f"kv/{layer:03d}.pages", start + 101
            yield f"kv/{layer:03d}.pages", start + layout.page_bytes - 102
        yield f"index/{layer:03d}.bounds", 5 * layout.summary_bytes + 3
    yield "checksums.u32", 41
    yield "tokens.i32", 1000
    yield "manifest.json", 300


@pytest.mark.parametrize("mode", MODES)
def test_a_flipped_bit_never_changes_an_answer(runner: Runner, tmp_path: Path, mode: str) -> None:
    expected, _, _ = ask(runner, request(None, answer=mode))
    asked = request(tmp_path, answer=mode)
    ask(runner, asked)
    # Each mode takes a third of the places; the fault runs try many more.
    for name, offset in list(places(runner))[MODES.index(mode) :: len(MODES)]:
        flip(only_folder(tmp_path) / name, offset)
        tokens, checked, events = ask(runner, asked)
        assert tokens == expected, (name, offset)
        found = notices(events)
        assert found in ([], ["session_damaged"]), (name, found)
        if not found:
            # Nothing of it was used; verifying finds it all the same.
            (record,) = SessionStore(tmp_path).list()
            with pytest.raises(DamagedSessionError):
                SessionStore(tmp_path).verify(record)
            assert SessionStore(tmp_path).quarantine(record.path)
            ask(runner, asked)
        assert len(SessionStore(tmp_path).list()) == 1


def test_damage_in_the_middle_of_an_answer(runner: Runner, tmp_path: Path) -> None:
    # Attending selects anew while the answer goes on, so values are first used then.
    asked = request(tmp_path, answer="attend")
    expected, _, _ = ask(runner, asked)
    size = runner.layout.page_bytes
    late = 0
    for page in range(1, 12):
        flip(only_folder(tmp_path) / "kv" / "002.pages", (page + 1) * size - 50)
        tokens, _, events = ask(runner, asked)
        assert tokens == expected
        found = [place for place, event in enumerate(events) if isinstance(event, Notice)]
        late += bool(found) and any(
            getattr(event, "name", "") == "answer" for event in events[: found[0]]
        )
        if not found:
            flip(only_folder(tmp_path) / "kv" / "002.pages", (page + 1) * size - 50)
    assert late


def test_damage_found_by_the_second_of_two_questions(runner: Runner, tmp_path: Path) -> None:
    asked = request(tmp_path, answer="attend", rounds=0)
    expected, _, _ = ask(runner, asked)
    first = answering(runner, dataclasses.replace(asked, answer="reread", rounds=1))
    list(first.events())
    flip(only_folder(tmp_path) / "index/001.bounds", 5 * runner.layout.summary_bytes)
    first.context.store.truncate(CONTEXT_TOKENS)
    second = answering(runner, asked)
    second = dataclasses.replace(second, reader=first.reader, given=first.context)
    seen = list(second.events())
    assert [event for event in seen if isinstance(event, int)] == expected
    assert notices([event for event in seen if not isinstance(event, int)]) == ["session_damaged"]
    assert second.context is not first.context


def test_opening_reads_only_what_is_used(runner: Runner, tmp_path: Path) -> None:
    asked = request(tmp_path, answer="reread")
    ask(runner, asked)
    reader = ContextReader(runner, tiny_hip(), asked, IDENTITY, CHUNK, 64)
    stream = reader.read()
    with pytest.raises(StopIteration) as stop:
        next(stream)
    checks = stop.value.value.store._checks
    last = CONTEXT_TOKENS // 64
    for part in (KEYS, VALUES, SUMMARY):
        assert not checks._known[part, :, :last].any()
        assert checks._known[part, :, last].all()


def test_pages_of_another_session_are_not_taken(runner: Runner, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    asked = request(first)
    expected, _, _ = ask(runner, asked)
    other = random_ids(CONTEXT_TOKENS, seed=6).numpy().astype(np.int32)
    ask(runner, request(second, context_ids=other))
    for name in ("checksums.u32", "kv/000.pages", "kv/001.pages", "kv/002.pages"):
        (only_folder(first) / name).write_bytes((only_folder(second) / name).read_bytes())
    tokens, _, events = ask(runner, asked)
    assert tokens == expected
    assert notices(events) == ["session_damaged"]


def test_damage_in_an_interrupted_prefill(runner: Runner, tmp_path: Path) -> None:
    expected, _, _ = ask(runner, request(None))
    for name, page in (("kv/001.pages", 2), ("kv/000.pages", 0), ("index/001.bounds", 3)):
        cache = tmp_path / name.replace("/", "-")
        reader = ContextReader(runner, tiny_hip(), request(cache), IDENTITY, CHUNK, 64)
        stream = reader.read()
        for event in stream:
            if isinstance(event, Progress) and event.done_tokens >= 5 * CHUNK:
                break
        stream.close()
        size = runner.layout.page_bytes if "kv" in name else runner.layout.summary_bytes
        flip(only_folder(cache) / name, page * size + 9)
        tokens, checked, events = ask(runner, request(cache))
        assert tokens == expected
        assert notices(events) == ["session_damaged"]
        assert checked.context.session.complete


def test_damage_in_a_cache_that_cannot_be_changed(runner: Runner, tmp_path: Path) -> None:
    expected, _, _ = ask(runner, request(tmp_path))
    flip(only_folder(tmp_path) / "kv/000.pages", 77)
    quarantine = SessionStore.quarantine
    try:
        SessionStore.quarantine = lambda self, folder: False  # type: ignore[method-assign]
        tokens, _, events = ask(runner, request(tmp_path))
    finally:
        SessionStore.quarantine = quarantine  # type: ignore[method-assign]
    assert tokens == expected
    assert notices(events) == ["session_damaged"]


def test_what_takes_the_place_of_a_damaged_session_has_its_name(
    runner: Runner, tmp_path: Path
) -> None:
    ask(runner, request(tmp_path, cache=CacheConfig(tmp_path, name="novel")))
    flip(only_folder(tmp_path) / "kv/000.pages", 77)
    _, _, events = ask(runner, request(tmp_path))
    assert notices(events) == ["session_damaged"]
    assert SessionStore(tmp_path).find("novel").complete


def test_cached_only_does_not_answer_from_a_damaged_session(runner: Runner, tmp_path: Path) -> None:
    from hipcli.engine.errors import NotCachedError

    asked = request(tmp_path)
    ask(runner, asked)
    flip(only_folder(tmp_path) / "kv/000.pages", 77)
    only = dataclasses.replace(asked, cache=CacheConfig(tmp_path, cached_only=True))
    with pytest.raises(NotCachedError):
        ask(runner, only)


def test_checksums_are_compared_once(tmp_path: Path) -> None:
    path = tmp_path / "checksums.u32"
    path.write_bytes(bytes(table_bytes(4, 2)))
    rows = np.arange(4 * 8, dtype=np.uint8).reshape(4, 8)
    written = PageChecks(path, 4, 2, seed=5, writable=True)
    written.record(VALUES, 1, 0, rows)
    read = PageChecks(path, 4, 2, seed=5, writable=False)
    read.expect(0, 4)
    read.compare(VALUES, 1, np.array([2, -1, 2, 99, 0]), rows)
    changed = rows.copy()
    changed[2] += 1
    read.compare(VALUES, 1, np.array([2, 0]), changed)
    changed[3] += 1
    with pytest.raises(DamagedSessionError, match="values of layer 1, page 3"):
        read.compare(VALUES, 1, None, changed)
    with pytest.raises(DamagedSessionError):
        PageChecks(path, 5, 2, seed=5, writable=False)


def test_the_first_damaged_page_is_told(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (600, 24), dtype=np.uint8)
    path = tmp_path / "sums"
    path.write_bytes(bytes(table_bytes(600, 1)))
    PageChecks(path, 600, 1, 5, writable=True).record(KEYS, 0, 0, rows)
    checks = PageChecks(path, 600, 1, 5, writable=False)
    checks.expect(0, 600)
    checks.compare(KEYS, 0, None, rows)
    assert not len(checks.unknown(KEYS, 0, None))
    checks.expect(0, 600)
    rows[[590, 205]] ^= 1
    with pytest.raises(DamagedSessionError, match="page 205"):
        checks.compare(KEYS, 0, None, rows)


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("count", [1, 5, 64, 130])
def test_the_checksum_of_a_run_follows_from_those_of_its_rows(count: int, length: int) -> None:
    rows = np.random.default_rng(count).integers(0, 256, (count, 37), dtype=np.uint8)
    for seed in (0, 0xDEADBEEF):
        each = np.array([zlib.crc32(row, seed) for row in rows], dtype=np.uint32)
        runs = [rows[at : at + length].tobytes() for at in range(0, count, length)]
        expected = [zlib.crc32(run, seed) for run in runs]
        assert RowSums(37, seed).of_runs(each, length).tolist() == expected


def test_a_damaged_row_is_found_in_its_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (200, 24), dtype=np.uint8)
    path = tmp_path / "sums"
    path.write_bytes(bytes(table_bytes(200, 1)))
    PageChecks(path, 200, 1, 5, writable=True).record(SUMMARY, 0, 0, rows)

    def compared(changed: np.ndarray, *, first: int = 0) -> None:
        checks = PageChecks(path, 200, 1, 5, writable=False)
        checks.expect(first, 200)
        checks.compare(SUMMARY, 0, None, changed)

    compared(rows)
    compared(rows, first=70)
    damaged = rows.copy()
    damaged[131, 3] ^= 4
    with pytest.raises(DamagedSessionError, match="page 131"):
        compared(damaged, first=70)
    swapped = rows.copy()
    swapped[[90, 91]] = swapped[[91, 90]]
    with pytest.raises(DamagedSessionError, match="page 90"):
        compared(swapped)


@pytest.mark.parametrize("keep", [0.4, None])
def test_where_no_cache_can_be_the_answer_comes_all_the_same(
    runner: Runner, tmp_path: Path, keep: float | None
) -> None:
    expected, _, _ = ask(runner, request(None))
    (tmp_path / "home").write_text("")
    cache = tmp_path / "home" / ".cache" / "hip"
    tokens, checked, events = ask(runner, request(cache, cache=CacheConfig(cache, keep=keep)))
    assert tokens == expected and notices(events) == ["cache_unwritable"]
    assert checked.asked.session.id == "" and checked.asked.session.kept_ratio == 1
    assert SessionStore(cache).list() == [] and SessionStore(cache).total_bytes() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
