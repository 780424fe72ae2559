"""Sessions: what is saved is what was computed, whatever happens on the way."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.errors import NotCachedError, SessionError
from hipcli.engine.events import Event, Notice, Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.identity import session_key
from hipcli.engine.sessions.manifest import read_sealed, write_sealed
from hipcli.engine.sessions.room import make_room
from hipcli.engine.store.pages import KVStore
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

CONTEXT_TOKENS = 900
CHUNK = 128
IDENTITY = {"weights": "w", "method": {"sink_tokens": 64, "window_tokens": 128}}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def request(
    directory: Path | None, *, length: int = CONTEXT_TOKENS, **changes: object
) -> AskRequest:
    fields = {
        "context_ids": random_ids(length, seed=5).numpy().astype(np.int32),
        "question_ids": [7, 8, 9, 10],
        "prefix_tokens": 3,
        "inputs": (InputRecord("a.txt", "00"),),
        "answer": "share",
        "generation": GenerationConfig(max_new_tokens=12),
        "cache": CacheConfig(directory),
    }
    return AskRequest(**{**fields, **changes})


def read(runner: Runner, ask: AskRequest) -> tuple[Context, list[Event]]:
    """Drain the events; return the context and them."""
    reader = ContextReader(runner, tiny_hip(), ask, IDENTITY, CHUNK, 64)
    events: list[Event] = []
    stream = reader.read()
    while True:
        try:
            events.append(next(stream))
        except StopIteration as stop:
            return stop.value, events


def answerer_of(runner: Runner, context: Context, ask: AskRequest) -> Answerer:
    return Answerer(
        runner,
        tiny_hip(),
        context.store,
        ask,
        budget_tokens=128,
        vote_distance_tokens=200,
        separator_ids=[11],
        stop_ids=frozenset(),
    )


def answer(runner: Runner, context: Context, ask: AskRequest) -> list[int]:
    return list(answerer_of(runner, context, ask).tokens())


def cold_answer(runner: Runner, ask: AskRequest) -> list[int]:
    plain = dataclasses.replace(ask, cache=CacheConfig(None))
    context, _ = read(runner, plain)
    return answer(runner, context, plain)


def check_warm_is_cold(runner: Runner, asked: AskRequest) -> None:
    """A saved session answers as a context that was never saved, whatever was asked in between."""
    expected = cold_answer(runner, asked)
    first, _ = read(runner, asked)
    assert answer(runner, first, asked) == expected
    # Another question in between must not leak into the saved pages.
    other = dataclasses.replace(asked, question_ids=[20, 21, 22])
    between, _ = read(runner, other)
    answer(runner, between, other)
    warm, _ = read(runner, asked)
    assert warm.session.reused and warm.cached_tokens == len(asked.context_ids)
    assert answer(runner, warm, asked) == expected


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("length", [5, 64, 127, 128, 129, 256, 900])
def test_warm_equals_cold(runner: Runner, tmp_path: Path, length: int, mode: str) -> None:
    ask = request(tmp_path, length=length, answer=mode)
    expected = cold_answer(runner, ask)
    first, _ = read(runner, ask)
    assert answer(runner, first, ask) == expected
    # Another question in between must not leak into the saved pages.
    other = dataclasses.replace(ask, question_ids=[20, 21, 22])
    between, _ = read(runner, other)
    answer(runner, between, other)
    warm, events = read(runner, ask)
    assert warm.session.reused and warm.session.complete
    assert warm.cached_tokens == length
    assert not any(isinstance(event, Progress) for event in events)
    assert answer(runner, warm, ask) == expected


def test_pages_on_disk_are_those_in_memory(runner: Runner, tmp_path: Path) -> None:
    plain, _ = read(runner, request(None))
    read(runner, request(tmp_path))
    warm, _ = read(runner, request(tmp_path))
    for layer in range(runner.layout.num_layers):
        full = CONTEXT_TOKENS // 64
        torch.testing.assert_close(
            warm.store.pages[layer][:full], plain.store.pages[layer][:full], rtol=0, atol=0
        )
        torch.testing.assert_close(
            warm.store.index[layer].summaries[:, :full],
            plain.store.index[layer].summaries[:, :full],
            rtol=0,
            atol=0,
        )


def test_changed_input_is_a_miss(runner: Runner, tmp_path: Path) -> None:
    first, _ = read(runner, request(tmp_path))
    changed = request(tmp_path, inputs=(InputRecord("a.txt", "01"),))
    context, _ = read(runner, changed)
    assert context.session.id != first.session.id
    assert len(SessionStore(tmp_path).list()) == 2


def test_a_cut_of_the_same_documents_is_another_session(runner: Runner, tmp_path: Path) -> None:
    read(runner, request(tmp_path))
    _, events = read(runner, request(tmp_path, length=500))
    assert not [event for event in events if isinstance(event, Notice)]
    whole, _ = read(runner, request(tmp_path))
    assert whole.session.reused
    assert len(SessionStore(tmp_path).list()) == 2


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
def test_a_long_question_is_read_in_chunks(runner: Runner, tmp_path: Path, mode: str) -> None:
    question = random_ids(1_200, seed=9).tolist()
    ask = request(tmp_path, question_ids=question, question_span=(2, 1_190), answer=mode)
    reader = ContextReader(runner, tiny_hip(), ask, IDENTITY, CHUNK, 1_300)

    def context() -> Context:
        stream = reader.read()
        while True:
            try:
                next(stream)
            except StopIteration as stop:
                return stop.value

    assert answer(runner, context(), ask) == answer(runner, context(), ask)


def test_cached_only(runner: Runner, tmp_path: Path) -> None:
    ask = request(tmp_path, cache=CacheConfig(tmp_path, cached_only=True))
    with pytest.raises(NotCachedError):
        read(runner, ask)
    read(runner, request(tmp_path))
    context, _ = read(runner, ask)
    assert context.session.reused


def test_interrupted_prefill_goes_on(runner: Runner, tmp_path: Path) -> None:
    expected = cold_answer(runner, request(None))
    reader = ContextReader(runner, tiny_hip(), request(tmp_path), IDENTITY, CHUNK, 64)
    stream: Iterator[Event] = reader.read()
    for event in stream:
        if isinstance(event, Progress) and event.done_tokens >= 3 * CHUNK:
            break
    stream.close()
    context, events = read(runner, request(tmp_path))
    progress = [event for event in events if isinstance(event, Progress)]
    assert progress[0].cached_tokens == 3 * CHUNK
    assert context.cached_tokens == 3 * CHUNK
    assert answer(runner, context, request(tmp_path)) == expected


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.engine.test_sessions import *
runner = Runner(tiny_model("llama"))
reader = ContextReader(runner, tiny_hip(), request(Path({cache!r})), IDENTITY, CHUNK, 64)
for event in reader.read():
    if isinstance(event, Progress):
        print(event.done_tokens, flush=True)
        time.sleep(0.05)
"""


def test_kill_in_mid_prefill(runner: Runner, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    script = KILLED.format(root=root, cache=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 2 * CHUNK:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL
    (record,) = SessionStore(tmp_path).list()
    assert not record.complete
    context, events = read(runner, request(tmp_path))
    assert context.cached_tokens >= 2 * CHUNK
    assert not [event for event in events if isinstance(event, Notice)]
    assert answer(runner, context, request(tmp_path)) == cold_answer(runner, request(None))
    assert [record.complete for record in SessionStore(tmp_path).list()] == [True]


def only_folder(cache: Path) -> Path:
    (record,) = SessionStore(cache).list()
    return record.path


DAMAGES = {
    "pages cut": lambda folder: os.truncate(folder / "kv" / "001.pages", 4096),
    "pages gone": lambda folder: (folder / "kv" / "002.pages").unlink(),
    "index empty": lambda folder: os.truncate(folder / "index" / "000.bounds", 0),
    "tokens flipped": lambda folder: (folder / "tokens.i32").write_bytes(bytes(CONTEXT_TOKENS * 4)),
    "manifest random": lambda folder: (folder / "manifest.json").write_bytes(os.urandom(200)),
    "manifest empty": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "folder replaced by a file": lambda folder: (shutil.rmtree(folder), folder.write_text("hi")),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_notice_and_a_rebuild(runner: Runner, tmp_path: Path, damage: str) -> None:
    expected = cold_answer(runner, request(None))
    read(runner, request(tmp_path))
    DAMAGES[damage](only_folder(tmp_path))
    context, events = read(runner, request(tmp_path))
    assert len([event for event in events if isinstance(event, Notice)]) == 1
    assert not context.session.reused
    assert answer(runner, context, request(tmp_path)) == expected
    again, _ = read(runner, request(tmp_path))
    assert again.session.reused


def test_newer_format_is_refused_by_name(runner: Runner, tmp_path: Path) -> None:
    read(runner, request(tmp_path))
    path = only_folder(tmp_path) / "manifest.json"
    write_sealed(path, {**read_sealed(path), "format_version": 99}, Disk())
    _, events = read(runner, request(tmp_path))
    notices = [event for event in events if isinstance(event, Notice)]
    assert len(notices) == 1 and "newer" in notices[0].message


def test_unwritable_cache_still_answers(runner: Runner, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    context, events = read(runner, request(blocked))
    assert [event.code for event in events if isinstance(event, Notice)] == ["cache_unwritable"]
    assert answer(runner, context, request(None)) == cold_answer(runner, request(None))


def test_full_disk_leaves_no_litter(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    context, events = read(runner, request(tmp_path))
    assert [event.code for event in events if isinstance(event, Notice)] == ["cache_unwritable"]
    assert list((tmp_path / "sessions").iterdir()) == []
    assert context.store.length == CONTEXT_TOKENS


def test_store_finds_by_name_prefix_and_latest(runner: Runner, tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    with pytest.raises(SessionError):
        store.find()
    read(runner, request(tmp_path, cache=CacheConfig(tmp_path, name="first")))
    time.sleep(0.02)
    read(runner, request(tmp_path, inputs=(InputRecord("b.txt", "02"),)))
    latest = store.find()
    assert latest.inputs[0]["name"] == "b.txt"
    assert store.find("first").inputs[0]["name"] == "a.txt"
    assert store.find(latest.id).key == latest.key
    with pytest.raises(SessionError):
        store.find("")
    with pytest.raises(SessionError):
        store.find("../..")
    store.remove(latest)
    assert [record.name for record in store.list()] == ["first"]


def test_room_is_made_by_removing_the_least_recently_used(runner: Runner, tmp_path: Path) -> None:
    for number in range(3):
        read(runner, request(tmp_path, inputs=(InputRecord("a.txt", str(number)),)))
        time.sleep(0.02)
    store = SessionStore(tmp_path)
    size = store.list()[0].num_bytes
    make_room(store, size, max_bytes=int(3.5 * size), keep="")
    assert [record.inputs[0]["sha256"] for record in store.list()] == ["2", "1"]


def test_files_are_private(runner: Runner, tmp_path: Path) -> None:
    read(runner, request(tmp_path))
    assert (tmp_path / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f")
    for path in (tmp_path / "sessions").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_every_part_of_the_record_changes_the_key() -> None:
    record = {"weights": "w", "method": {"name": "hip", "budget": 1}, "inputs": [["a", "b"]]}
    variants = [
        record,
        {**record, "weights": "x"},
        {**record, "method": {"name": "hip", "budget": 2}},
        {**record, "inputs": [["a", "b"], ["a", "b"]]},
        {**record, "inputs": [["ab", ""]]},
        {**record, "inputs": [["", "ab"]]},
        {**record, "inputs": [["a"], ["b"]]},
        {**record, "new": None},
    ]
    assert len({session_key(variant) for variant in variants}) == len(variants)
    assert session_key(dict(reversed(record.items()))) == session_key(record)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
_RECORDS = st.dictionaries(st.text(max_size=3), _JSON, max_size=4)


@settings(max_examples=200, deadline=None)
@given(_RECORDS, _RECORDS)
def test_two_records_share_a_key_only_if_they_are_equal(first: dict, second: dict) -> None:
    # JSON tells 1 from True, Python does not.
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (session_key(first) == session_key(second)) == same


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=2, max_size=4), st.data())
def test_text_that_moves_between_fields_changes_the_key(texts: list[str], data) -> None:
    at = data.draw(st.integers(0, len(texts) - 2))
    if not texts[at]:
        return
    moved = list(texts)
    moved[at], moved[at + 1] = texts[at][:-1], texts[at][-1] + texts[at + 1]
    assert session_key({"inputs": texts}) != session_key({"inputs": moved})


def test_store_capacity_is_checked(runner: Runner) -> None:
    store = KVStore(runner.layout, 64)
    shape = (65, runner.layout.num_kv_heads, runner.layout.head_dim)
    with pytest.raises(ValueError, match="capacity"):
        store.append(0, 0, torch.zeros(shape), torch.zeros(shape))
