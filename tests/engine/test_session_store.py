"""The folder of all sessions: names, forks, room, and what killed processes leave behind."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError, SessionError
from hipcli.engine.events import Notice
from hipcli.engine.forward.runner import Runner
from hipcli.engine.request import InputRecord
from hipcli.engine.sessions import SessionStore, locks
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.fork import fork
from hipcli.engine.sessions.manifest import read_sealed, write_sealed
from hipcli.engine.sessions.record import folder_bytes
from hipcli.engine.sessions.room import NoRoomError, make_room, surplus
from tests.engine.test_session_integrity import ask, flip, notices
from tests.engine.test_sessions import cold_answer, read, request
from tests.engine.tiny import random_ids, tiny_model


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def build(runner: Runner, cache: Path, name: str = "", seed: int = 5, branch: str = "") -> list:
    """Read a document; its session's name is `name`."""
    asked = request(
        cache,
        context_ids=random_ids(300, seed=seed).numpy().astype("int32"),
        inputs=(InputRecord(f"{seed}.txt", str(seed)),),
        cache=CacheConfig(cache, name=name, branch=branch),
    )
    return read(runner, asked)[1]


def test_two_sessions_never_share_a_name(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    build(runner, tmp_path, "novel", seed=1)
    first = store.find("novel")
    events = build(runner, tmp_path, "novel", seed=2)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.code == "name_moved" and first.id in notice.message
    assert store.find("novel").inputs[0]["name"] == "2.txt"
    assert sorted(record.name for record in store.list()) == ["", "novel"]
    # The same session asked again by its name: nothing to tell.
    assert not [event for event in build(runner, tmp_path, "novel", seed=2)]
    # A saved session takes a name that another one has.
    events = build(runner, tmp_path, "novel", seed=1)
    assert notices(events) == ["name_moved"]
    assert store.find("novel").id == first.id


def test_a_name_that_looks_like_an_id_hides_no_session(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    build(runner, tmp_path, seed=1)
    first = store.find(None)
    build(runner, tmp_path, first.id, seed=2)
    assert store.find(first.id).key == first.key
    assert store.find(first.key).key == first.key


def test_a_new_name_for_a_session_is_told(runner: Runner, tmp_path: Path) -> None:
    build(runner, tmp_path, "novel", seed=1)
    events = build(runner, tmp_path, "letters", seed=1)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.code == "renamed" and "'novel'" in notice.message
    assert not [
        event for event in build(runner, tmp_path, "letters", seed=1) if isinstance(event, Notice)
    ]


def test_an_ambiguous_prefix_names_the_candidates(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    seed = 0
    while len({record.id[0] for record in store.list()}) == len(store.list()):
        seed += 1
        build(runner, tmp_path, seed=seed)
    digits = [record.id[0] for record in store.list()]
    shared = next(digit for digit in digits if digits.count(digit) > 1)
    with pytest.raises(SessionError) as raised:
        store.find(shared)
    for record in store.list():
        assert (record.id in raised.value.message) == (record.id[0] == shared)


def test_a_fork_shares_pages_and_outlives_its_parent(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    asked = request(tmp_path)
    expected = cold_answer(runner, asked)
    read(runner, asked)
    parent = store.find()
    alone = store.total_bytes()
    branch = fork(store, parent, "second")
    assert branch.id != parent.id and branch.name == "second" and branch.complete
    # A manifest and folders, not another copy of the pages.
    assert store.total_bytes() - alone < alone // 4
    store.verify(branch)
    store.remove(parent)
    cache = CacheConfig(tmp_path, branch=branch.branch)
    tokens, checked, events = ask(runner, request(tmp_path, cache=cache))
    assert tokens == expected and not notices(events)
    assert checked.context.session.id == branch.id and checked.context.session.reused
    store.remove(branch)
    assert store.list() == []


def test_a_fork_of_a_fork_and_a_taken_name(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    build(runner, tmp_path, "a")
    second = fork(store, fork(store, store.find("a")), "a")
    assert store.find("a").id == second.id
    assert len(store.list()) == 3


def test_room_spares_what_is_read_and_refuses_what_never_fits(
    runner: Runner, tmp_path: Path
) -> None:
    for seed in range(3):
        build(runner, tmp_path, seed=seed)
    store = SessionStore(tmp_path)
    oldest = store.list()[-1]
    size = oldest.num_bytes
    with pytest.raises(NoRoomError):
        make_room(store, 10 * size, max_bytes=9 * size, keep="")
    assert len(store.list()) == 3
    reader = locks.Lease(oldest.path)
    make_room(store, size, max_bytes=int(2.5 * size), keep="")
    assert [record.id for record in store.list()] == [oldest.id]
    del reader
    make_room(store, size, max_bytes=int(1.5 * size), keep="")
    assert store.list() == []


def test_the_latest_stays_the_latest_when_the_clock_goes_back(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(runner, tmp_path, seed=1)
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    build(runner, tmp_path, seed=2)
    assert SessionStore(tmp_path).find().inputs[0]["name"] == "2.txt"
    build(runner, tmp_path, seed=1)
    assert SessionStore(tmp_path).find().inputs[0]["name"] == "1.txt"


def test_a_damaged_manifest_is_listed_and_goes_first(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for seed in (1, 2):
        build(runner, tmp_path, seed=seed)
    damaged = store.find()
    flip(damaged.path / "manifest.json", 50)
    (row,) = [record for record in store.list(unusable=True) if not record.usable]
    assert row.state == "damaged" and damaged.key.startswith(row.key)
    for wanted in (damaged.id, None):
        with pytest.raises(DamagedSessionError) as raised:
            store.find(wanted)
        assert f"hip sessions rm {damaged.id}" in raised.value.hint
    # What it was called is not known any more.
    with pytest.raises(SessionError, match="no session 'novel'") as nameless:
        store.find("novel")
    assert "damaged" in nameless.value.hint
    assert store.find(damaged.id, unusable=True).num_bytes == damaged.num_bytes
    assert [path for path, _ in surplus(store, None)] == [damaged.path]
    make_room(store, row.num_bytes, max_bytes=int(2.5 * row.num_bytes), keep="")
    assert [record.inputs[0]["name"] for record in store.list(unusable=True)] == ["1.txt"]


def test_leftovers_are_swept(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.prepare()
    for name in ("a.new", "b.123.trash"):
        (store.root / name / "kv").mkdir(parents=True)
    (tmp_path / "locks" / "a.lock").write_text("[1, 2]")
    busy = store.root / ("c" * 32 + ".new")
    busy.mkdir()
    with store.lock("c" * 64):
        store.prepare()
        assert os.listdir(store.root) == [busy.name]
        assert os.listdir(tmp_path / "locks") == ["c" * 32 + ".lock"]
    store.prepare()
    assert os.listdir(store.root) == [] == os.listdir(tmp_path / "locks")


def test_a_lock_says_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    assert locks.holder(path) == ""
    with locks.held(path, wait=False) as ours:
        assert ours and locks.holder(path) == f"process {os.getpid()}"
        with locks.held(path, wait=False) as again:
            assert not again
    assert not path.exists() and locks.holder(path) == ""


def test_sizes_agree_with_du(runner: Runner, tmp_path: Path) -> None:
    import subprocess

    build(runner, tmp_path)
    store = SessionStore(tmp_path)
    fork(store, store.find())
    told = subprocess.run(
        ["du", "-s", "--block-size=1", str(store.root)], capture_output=True, text=True, check=True
    )
    # du counts the folder itself too.
    assert abs(int(told.stdout.split()[0]) - store.total_bytes()) <= 8192
    assert store.find().num_bytes == folder_bytes(store.find().path)


@pytest.mark.parametrize("kept", [0, 127, 128, 300, 640, 899])
def test_a_context_takes_over_what_it_shares(runner: Runner, tmp_path: Path, kept: int) -> None:
    read(runner, request(tmp_path))
    longer = random_ids(1_000, seed=8).numpy().astype("int32")
    longer[:kept] = request(tmp_path).context_ids[:kept]
    asked = request(tmp_path, context_ids=longer)
    expected = cold_answer(runner, asked)
    tokens, checked, events = ask(runner, asked)
    assert tokens == expected and not notices(events)
    assert checked.context.cached_tokens == kept // 128 * 128
    again, checked, _ = ask(runner, asked)
    assert again == expected
    assert checked.context.cached_tokens == 1_000
    for record in SessionStore(tmp_path).list():
        SessionStore(tmp_path).verify(record)


def test_a_damaged_session_lends_no_pages(runner: Runner, tmp_path: Path) -> None:
    read(runner, request(tmp_path))
    flip(SessionStore(tmp_path).find().path / "kv/002.pages", 500)
    longer = random_ids(1_000, seed=8).numpy().astype("int32")
    longer[:640] = request(tmp_path).context_ids[:640]
    asked = request(tmp_path, context_ids=longer)
    expected = cold_answer(runner, asked)
    tokens, checked, events = ask(runner, asked)
    assert tokens == expected and notices(events) == ["session_damaged"]
    assert len(SessionStore(tmp_path).list()) == 1


def test_a_file_that_several_write_is_never_half_of_one(tmp_path: Path) -> None:
    path, texts = tmp_path / "manifest.json", ("a" * 30_000, "b" * 60_000)
    write_sealed(path, {"x": texts[0]}, Disk(), sync=False)

    def write(text: str) -> None:
        for _ in range(150):
            write_sealed(path, {"x": text}, Disk(), sync=False)

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, text) for text in texts]
        while not all(writer.done() for writer in writers):
            assert read_sealed(path)["x"] in texts
        for writer in writers:
            writer.result()
    assert os.listdir(tmp_path) == ["manifest.json"]
