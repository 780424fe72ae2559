"""Pruned contexts: which pages stay, who is served by them, and that answers say so."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hipcli.engine.config import CacheConfig
from hipcli.engine.errors import DamagedSessionError, SessionError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.reading.worth import page_worth
from hipcli.engine.request import AskRequest
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.kept import (
    as_runs,
    chosen_pages,
    fitting_ratio,
    from_runs,
    kept_count,
)
from hipcli.engine.sessions.manifest import Manifest, read_worth
from hipcli.engine.sessions.pruning import prune
from hipcli.engine.store.layout import num_pages
from tests.engine.test_session_integrity import ask, flip, notices
from tests.engine.test_sessions import CONTEXT_TOKENS, request
from tests.engine.tiny import random_ids, tiny_model

PAGES = num_pages(CONTEXT_TOKENS)
MODES = ("attend", "share", "reread")
METHOD = {"sink_tokens": 64, "window_tokens": 128}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def asked(cache: Path | None, keep: float | None, mode: str = "share", **more: int) -> AskRequest:
    return request(cache, answer=mode, cache=CacheConfig(cache, keep=keep, **more))


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=60),
    st.integers(1, 64),
    st.floats(0.01, 0.99),
)
def test_sinks_window_and_the_worthiest_stay(worth: list[float], rest: int, ratio: float) -> None:
    tokens = (len(worth) - 1) * 64 + rest
    pages = chosen_pages(worth, tokens, METHOD, ratio)
    assert len(pages) == kept_count(tokens, METHOD, ratio)
    assert np.all(np.diff(pages) > 0) and pages[-1] == len(worth) - 1 and pages[0] == 0
    window = range(max(1, tokens // 64 - 2), len(worth))
    assert set(window) <= set(pages.tolist())
    middle = range(1, window.start)
    kept = [worth[page] for page in middle if page in pages]
    gone = [worth[page] for page in middle if page not in pages]
    assert not gone or min(kept) >= max(gone)
    assert from_runs(as_runs(pages)).tolist() == pages.tolist()
    limit = len(pages) * 100
    fitting = fitting_ratio(tokens, METHOD, 100, limit)
    assert fitting == 0 or kept_count(tokens, METHOD, fitting) * 100 <= limit


def test_a_page_unlike_the_others_is_worth_most() -> None:
    runner = Runner(tiny_model("llama"))
    generator = torch.Generator().manual_seed(0)
    store = runner.new_store(640)
    for layer in range(runner.layout.num_layers):
        shape = (600, runner.layout.num_kv_heads, runner.layout.head_dim)
        # Some directions vary much, others hardly.
        k = torch.randn(shape, generator=generator) * torch.linspace(3, 0.1, shape[-1])
        k[330:338, :, -1] += 2
        store.append(layer, 0, k, k)
    store.length = 600
    worth = page_worth(store)
    assert worth.argmax() == 5 and worth[-1] == 0 and len(worth) == 10


@pytest.mark.parametrize(
    "kind", [("auto", "cpu"), ("auto", "reference"), ("fp8_e4m3", "reference")]
)
@pytest.mark.parametrize("mode", MODES)
def test_warm_equals_cold_and_both_say_what_is_kept(
    tmp_path: Path, mode: str, kind: tuple[str, str]
) -> None:
    runner = Runner(tiny_model("llama"), *kind)
    expected, unsaved, _ = ask(runner, asked(None, 0.4, mode))
    assert unsaved.context.session.kept_ratio == 1
    first, cold, events = ask(runner, asked(tmp_path, 0.4, mode))
    again, warm, more = ask(runner, asked(tmp_path, 0.4, mode))
    assert first == again == expected
    (record,) = SessionStore(tmp_path).list()
    ratio = kept_count(CONTEXT_TOKENS, METHOD, 0.4) / PAGES
    for checked in (unsaved, cold, warm):
        assert checked.asked.session.kept_ratio == ratio == record.kept_ratio
    assert cold.asked.session.complete and warm.asked.session.complete
    assert warm.asked.cached_tokens == CONTEXT_TOKENS
    assert notices(events) == notices(more) == ["pruned"]
    # Voted pages are pages of the context, and of those only what is kept.
    kept = from_runs(Manifest.read(record.path).kept).tolist()
    assert len(kept) < PAGES
    assert warm.answerer.evidence == cold.answerer.evidence
    assert all(passage.start_token // 64 in kept for passage in warm.answerer.evidence)
    SessionStore(tmp_path).verify(record)


def test_it_takes_that_much_less_room(runner: Runner, tmp_path: Path) -> None:
    ask(runner, asked(tmp_path / "full", 1.0))
    ask(runner, asked(tmp_path / "part", 0.1))

    def pages(cache: Path) -> int:
        (record,) = SessionStore(cache).list()
        return sum(file.stat().st_size for file in (record.path / "kv").iterdir())

    kept = kept_count(CONTEXT_TOKENS, METHOD, 0.1) / PAGES
    assert pages(tmp_path / "part") == pages(tmp_path / "full") * kept


def test_who_is_served_by_whom(runner: Runner, tmp_path: Path) -> None:
    def cached(keep: float | None, cache: str) -> tuple[int, float]:
        _, checked, _ = ask(runner, asked(tmp_path / cache, keep))
        return checked.asked.cached_tokens, checked.asked.session.kept_ratio

    # A full session serves every request.
    assert cached(1.0, "full") == (0, 1.0)
    assert cached(0.4, "full") == (CONTEXT_TOKENS, 1.0)
    assert cached(None, "full") == (CONTEXT_TOKENS, 1.0)
    # A pruned one serves requests for what it keeps, and those that leave it to hip.
    ratio = cached(0.4, "part")[1]
    assert ratio < 1
    assert cached(0.4, "part") == cached(None, "part") == (CONTEXT_TOKENS, ratio)
    assert cached(0.5, "part")[0] == 0
    assert cached(1.0, "part") == (0, 1.0)
    # Now a full one is there. Whoever asks for a part has it all the same.
    assert cached(0.4, "part") == (CONTEXT_TOKENS, ratio)
    assert cached(None, "part") == (CONTEXT_TOKENS, 1.0)
    assert len(SessionStore(tmp_path / "part").list()) == 3


def test_auto_keeps_what_fits(runner: Runner, tmp_path: Path) -> None:
    whole = runner.layout.num_bytes(CONTEXT_TOKENS)
    _, checked, events = ask(runner, asked(tmp_path, None, max_bytes=whole * 2 // 3))
    assert notices(events) == ["pruned"]
    (record,) = SessionStore(tmp_path).list()
    kept = from_runs(Manifest.read(record.path).kept)
    assert len(kept) * whole / PAGES <= whole * 2 / 3 < (len(kept) + 2) * whole / PAGES
    assert checked.asked.session.kept_ratio == record.kept_ratio
    _, checked, _ = ask(runner, asked(tmp_path, None, max_bytes=whole * 2 // 3))
    assert checked.asked.cached_tokens == CONTEXT_TOKENS
    # Not even sinks and window.
    _, checked, events = ask(runner, asked(tmp_path / "b", None, max_bytes=whole // 20))
    assert notices(events) == ["cache_unwritable"]
    assert checked.asked.session.kept_ratio == 1


def test_pruned_later(runner: Runner, tmp_path: Path) -> None:
    expected, _, _ = ask(runner, asked(tmp_path / "first", 0.4))
    full, _, _ = ask(runner, asked(tmp_path, 1.0))
    store = SessionStore(tmp_path)
    store.rename(store.find(), "novel")
    record = prune(store, store.find("novel"), 0.4)
    assert record is not None and record.name == "novel" and record.kept_ratio < 1
    assert [other.id for other in store.list()] == [record.id]
    tokens, checked, _ = ask(runner, asked(tmp_path, 0.4))
    assert tokens == expected and checked.asked.session.id == record.id
    # Keeps less already; and less still.
    assert prune(store, record, 0.5) is None
    fewer = prune(store, record, 0.1)
    assert fewer is not None and fewer.kept_ratio < record.kept_ratio
    store.verify(fewer)
    again, checked, _ = ask(runner, asked(tmp_path, 1.0))
    assert again == full and checked.asked.cached_tokens == 0


def test_a_damaged_session_is_not_pruned(runner: Runner, tmp_path: Path) -> None:
    ask(runner, asked(tmp_path, 1.0))
    store = SessionStore(tmp_path)
    record = store.find()
    flip(record.path / "kv" / "001.pages", 5 * runner.layout.page_bytes)
    with pytest.raises(DamagedSessionError):
        prune(store, record, 0.4)
    assert [other.id for other in store.list()] == [record.id]
    partial = dataclasses.replace(record, state="partial")
    with pytest.raises(SessionError, match="not read to its end"):
        prune(store, partial, 0.4)


def test_a_longer_context_begins_with_no_pruned_one(runner: Runner, tmp_path: Path) -> None:
    ask(runner, asked(tmp_path, 0.4))
    longer = np.concatenate((asked(None, 1.0).context_ids, random_ids(200, seed=9).numpy()))
    grown = dataclasses.replace(asked(tmp_path, 1.0), context_ids=longer.astype(np.int32))
    expected, _, _ = ask(runner, dataclasses.replace(grown, cache=CacheConfig(None)))
    tokens, checked, _ = ask(runner, grown)
    assert tokens == expected and checked.asked.cached_tokens == 0


def test_the_record_of_a_grown_context_is_made_anew(runner: Runner, tmp_path: Path) -> None:
    longer = np.concatenate((asked(None, 1.0).context_ids, random_ids(200, seed=9).numpy()))
    records = []
    for cache, before in ((tmp_path / "grown", True), (tmp_path / "cold", False)):
        if before:
            ask(runner, asked(cache, 1.0))
        grown = dataclasses.replace(asked(cache, 1.0), context_ids=longer.astype(np.int32))
        _, checked, _ = ask(runner, grown)
        assert (checked.asked.cached_tokens > 0) == before
        records.append(read_worth(SessionStore(cache).find(checked.asked.session.id).path))
    np.testing.assert_allclose(records[0], records[1], rtol=1e-4, atol=1e-4)


def test_attend_without_rounds_looks_for_no_passages(runner: Runner) -> None:
    plain = dataclasses.replace(asked(None, 1.0, "attend"), rounds=0)
    tokens, without, _ = ask(runner, plain)
    assert len(tokens) == plain.generation.max_new_tokens
    assert not without.answerer.evidence


@pytest.mark.parametrize("mode", ["auto", "share", "reread"])
def test_only_attend_goes_without_rounds(mode: str) -> None:
    with pytest.raises(ValueError, match="rounds"):
        dataclasses.replace(asked(None, 1.0, mode), rounds=0)


def test_a_full_session_says_that_it_is_not_pruned(runner: Runner, tmp_path: Path) -> None:
    ask(runner, asked(tmp_path, 1.0))
    _, checked, events = ask(runner, asked(tmp_path, 0.4))
    assert checked.asked.session.kept_ratio == 1
    assert notices(events) == ["kept_whole"]


def test_reading_anew_keeps_the_name_and_what_was_remembered(
    runner: Runner, tmp_path: Path
) -> None:
    first = dataclasses.replace(asked(tmp_path, 1.0), extra={"turns": [["a", "b"]]})
    ask(runner, dataclasses.replace(first, cache=dataclasses.replace(first.cache, name="n")))
    again = dataclasses.replace(first, extra={})
    ask(runner, dataclasses.replace(again, cache=dataclasses.replace(again.cache, refresh=True)))
    (record,) = SessionStore(tmp_path).list()
    manifest = Manifest.read(record.path)
    assert (manifest.name, manifest.extra) == ("n", {"turns": [["a", "b"]]})


def test_pruning_leaves_another_pruned_session_alone(runner: Runner, tmp_path: Path) -> None:
    ask(runner, asked(tmp_path, 0.4))
    ask(runner, asked(tmp_path, 1.0))
    store = SessionStore(tmp_path)
    (full,) = (record for record in store.list() if not Manifest.read(record.path).kept)
    with pytest.raises(SessionError, match="already"):
        prune(store, full, 0.4)
    assert len(store.list()) == 2
