"""A limit on main memory: pages go back to their files, and answers stay what they were."""

import errno
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Event, Notice
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.reading.overflow import overflow
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.engine.resident import resident_bytes, resident_in
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.store import limits
from hipcli.engine.store.limits import HostLimit, available_bytes
from hipcli.engine.store.mapping import AddressRange
from hipcli.engine.store.pages import KVLayout, KVStore
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

CONTEXT_TOKENS = 900
IDENTITY = {"weights": "w", "method": {"sink_tokens": 64, "window_tokens": 128}}


def request_of(cache: Path | None, mode: str) -> AskRequest:
    return AskRequest(
        context_ids=random_ids(CONTEXT_TOKENS).numpy(),
        question_ids=random_ids(20, seed=3).tolist(),
        prefix_tokens=4,
        inputs=(InputRecord("a", "0"),),
        answer=mode,
        generation=GenerationConfig(max_new_tokens=12),
        cache=CacheConfig(cache),
    )


def drained(reading: Generator[Event, None, Context]) -> tuple[Context, list[Event]]:
    """What was read, and what was told on the way."""
    told: list[Event] = []
    try:
        while True:
            told.append(next(reading))
    except StopIteration as stop:
        return stop.value, told


def answer(
    runner: Runner, cache: Path | None, disk: Disk, mode: str
) -> tuple[list[int], list[Event]]:
    """An answer of 12 tokens, and what was told on the way."""
    request = request_of(cache, mode)
    reader = ContextReader(runner, tiny_hip(), request, IDENTITY, 128, 64, disk)
    context, told = drained(reader.read())
    answerer = Answerer(runner, tiny_hip(), context.store, request, 128, 64, [5], frozenset({2}))
    list(answerer.read_head())
    return list(answerer.tokens()), told


def limited(folder: Path, num_bytes: int) -> Runner:
    return Runner(tiny_model("llama"), host_limit=HostLimit(num_bytes, folder))


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
def test_answers_do_not_depend_on_the_memory(tmp_path: Path, mode: str) -> None:
    expected, _ = answer(limited(tmp_path, 1 << 40), None, Disk(), mode)
    # Everything is given back before each use.
    tight = limited(tmp_path, 1)
    unsaved, told = answer(tight, None, Disk(), mode)
    assert [event.code for event in told if isinstance(event, Notice)] == ["kv_on_disk"]
    cold, told = answer(tight, tmp_path / "cache", Disk(), mode)
    assert not [event for event in told if isinstance(event, Notice)]
    warm, _ = answer(tight, tmp_path / "cache", Disk(), mode)
    assert unsaved == cold == warm == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"], "nothing is left behind"


class FullDisk(Disk):
    def unnamed(self, folder: Path, num_bytes: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_neither_memory_nor_disk(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFitError, match="No space left") as refused:
        answer(limited(tmp_path, 1), None, FullDisk(), "attend")
    assert "--host-memory" in refused.value.hint


class CountedDisk(Disk):
    def __init__(self) -> None:
        self.made: list[int] = []

    def unnamed(self, folder: Path, num_bytes: int) -> int:
        self.made.append(num_bytes)
        return super().unnamed(folder, num_bytes)


def test_what_is_kept_of_an_unsaved_context_is_under_the_limit_too(tmp_path: Path) -> None:
    asked = request_of(None, "attend")
    kept = []
    for runner in (limited(tmp_path, 1 << 40), limited(tmp_path, 1)):
        disk = CountedDisk()
        reader = ContextReader(runner, tiny_hip(), asked, IDENTITY, 128, 64, disk)
        context, _ = drained(reader.read())
        kept.append(reader.pruned(context, 0.5).store)
        assert len(disk.made) == (0 if runner.host_limit.num_bytes > 1 else 2)
    free, tight = kept
    assert free.length == tight.length < CONTEXT_TOKENS
    tight.relieve()
    for layer in range(free.layout.num_layers):
        for mine, its in zip(
            tight.tokens(layer, tight.length), free.tokens(layer, free.length), strict=True
        ):
            assert torch.equal(mine, its)


class DeniedFolder(Disk):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def unnamed(self, folder: Path, num_bytes: int) -> int:
        if folder == self._folder:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return super().unnamed(folder, num_bytes)


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a whole machine often lie where its users may only read."""
    models, temporary = tmp_path / "models", tmp_path / "temporary"
    monkeypatch.setattr(limits.tempfile, "gettempdir", lambda: str(temporary))
    temporary.mkdir()
    expected, _ = answer(limited(models, 1 << 40), None, Disk(), "attend")
    told, events = answer(limited(models, 1), None, DeniedFolder(models), "attend")
    assert told == expected
    (notice,) = (event for event in events if isinstance(event, Notice))
    assert str(temporary) in notice.message


def test_pages_are_given_back(tmp_path: Path) -> None:
    """64 MiB of pages under a limit of 16 above what the process has."""
    layout = KVLayout(2, 2, 64, torch.float32)
    pages = (64 << 20) // (2 * layout.page_bytes)
    start = resident_bytes()
    if not start:
        pytest.skip("the system does not say what is resident")
    store = KVStore(layout, pages * 64, limit=HostLimit(start + (48 << 20), tmp_path))
    told = list(overflow(store, Disk()))
    assert len(told) == 1
    # The limit of the test itself is far below a quarter of what a process with torch takes.
    store._memory._limit = SimpleNamespace(  # type: ignore[assignment]
        reached=lambda spare_bytes: resident_bytes() > start + (16 << 20)
    )
    most = 0
    for page in range(0, pages, 8):
        for layer in range(2):
            k = torch.full((512, 2, 64), float(page))
            store.append(layer, page * 64, k, -k)
            store.relieve()
            most = max(most, resident_bytes() - start)
    assert most < 32 << 20
    for page in range(0, pages, 8):
        assert store.pages[0][page, 0].eq(page).all() and store.pages[1][page, 1].eq(-page).all()
        store.relieve()
    assert resident_bytes() - start < 32 << 20


def test_what_a_question_writes_is_never_given_back(tmp_path: Path) -> None:
    runner = limited(tmp_path, 1)
    answer(runner, tmp_path / "cache", Disk(), "attend")
    (folder,) = (path for path in (tmp_path / "cache").glob("*/*") if path.is_dir())
    store = runner.new_store(CONTEXT_TOKENS + 64)
    from hipcli.engine.sessions.session import Session

    Session.open(folder, Disk()).map_into(store)
    assert store.length == CONTEXT_TOKENS
    k = torch.full((8, 2, 16), 7.0)
    store.append(0, CONTEXT_TOKENS, k, k)
    store.append_within_page(1, CONTEXT_TOKENS, torch.stack((k, k), 1))
    store.relieve()
    page, offset = divmod(CONTEXT_TOKENS, 64)
    for layer in (0, 1):
        assert store.pages[layer][page, 0, :, offset : offset + 8].eq(7).all()


def test_a_mapped_range_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 64)
    area = AddressRange(1 << 15)
    area.map_file(file, 1 << 14, shared=True)
    view = area.tensor(torch.uint8, (1 << 15,))
    view[5], view[1 << 14] = 99, 42
    area.let_go(1 << 15)
    assert view[5] == 99 and view[6] == 6, "what was written through"
    assert view[1 << 14] == 42, "memory that no file holds"


def test_available_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 2048 kB\n")
    assert available_bytes(tmp_path) == 2 << 20
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 2 << 20
    (group / "memory.max").write_text("5000\n")
    (group / "memory.stat").write_text("anon 500\ninactive_file 400\nactive_file 100\n")
    assert available_bytes(tmp_path) == 4400
    (group / "memory.stat").write_text("anon 500\n\ninactive_file\n")
    (tmp_path / "proc/meminfo").write_text("MemAvailable:\n")
    assert available_bytes(tmp_path) is None


def test_without_a_limit_most_of_what_is_free_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 1000)
    chosen = HostLimit.of(0, tmp_path / "cache" / "models")
    assert chosen is not None and chosen.num_bytes >= 800
    assert chosen.folder.is_dir()
    monkeypatch.setattr(limits, "available_bytes", lambda: None)
    assert HostLimit.of(0, tmp_path) is None
    assert HostLimit.of(5, tmp_path) == HostLimit(5, tmp_path)
    # The cache's own folder, before any model lies in it.
    assert HostLimit.of(5, tmp_path / "models") == HostLimit(5, tmp_path)


def test_what_fits_leaves_a_quarter_for_what_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "resident_bytes", lambda: 500)
    limit = HostLimit(1000, tmp_path)
    assert limit.holds(249) and not limit.holds(250)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_of_the_files_is_in_memory_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(1 << 20))
    mapped = AddressRange(2 << 20)
    mapped.map_file(path, 1 << 20, shared=True)
    tensor = mapped.tensor(torch.uint8, (2 << 20,))
    assert resident_in([mapped.filed]) == 0
    tensor.add_(1)
    assert resident_in([mapped.filed]) == 1 << 20
    mapped.let_go(1 << 19)
    assert resident_in([mapped.filed]) == 1 << 19


def test_only_what_is_compared_comes_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = limited(tmp_path, 1 << 40)
    answer(runner, tmp_path, Disk(), "attend")
    reader = ContextReader(runner, tiny_hip(), request_of(tmp_path, "attend"), IDENTITY, 128, 64)
    context, _ = drained(reader.read())
    assert context.cached_tokens == CONTEXT_TOKENS
    fetched: list[tuple[int, int]] = []
    monkeypatch.setattr(AddressRange, "fetch", lambda _, start, end: fetched.append((start, end)))
    store, size = context.store, context.store.layout.page_bytes
    store.check_keys(0, torch.tensor([7, 3, -1, 7, 99]))
    assert fetched == [(3 * size, 3 * size + size // 2), (7 * size, 7 * size + size // 2)]
    store.check_keys(0, torch.tensor([3, 5]))
    assert fetched[2:] == [(5 * size, 5 * size + size // 2)]
    del fetched[:]
    store.check_attended(0, torch.tensor([4]), 64, 64, CONTEXT_TOKENS // 64 * 64)
    # The last page was compared when the session was opened.
    keys = [(page * size, page * size + size // 2) for page in (0, 4)]
    assert fetched == [*keys, *((start + size // 2, end + size // 2) for start, end in keys)]
    store.check_keys(0)
    assert len(fetched) == 4 + 15 - 6


def test_bytes_of_a_file_are_asked_for_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    mapped = AddressRange(1 << 20)
    mapped.fetch(0, 1 << 20)
    mapped.map_file(path, 10_000, shared=False)
    mapped.fetch(5_000, 1 << 20)
    mapped.fetch(500_000, 600_000)
    tensor = mapped.tensor(torch.uint8, (20_000,))
    assert tensor[:10_000].tolist() == [*path.read_bytes()[:10_000]]
