"""Where keys and values are said to lie, while a context is read and with its answer."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.events import Progress
from hipcli.engine.forward.runner import Runner
from hipcli.engine.store.layout import KVLayout, num_pages
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.pages import KVStore
from hipcli.engine.store.shares import Shares, shares_of
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan
from hipcli.runs.asking import kv_places
from tests.engine.test_sessions import read, request
from tests.engine.test_tiered_sessions import SLOTS, tiered
from tests.engine.tiny import tiny_model

LAYOUT = KVLayout(2, 2, 16, torch.float32)
PAGE, SUMMARY = 2 * LAYOUT.page_bytes, 2 * LAYOUT.summary_bytes


def store(disk_pages: int) -> TieredStore:
    return TieredStore(LAYOUT, 64 * 20, TierPlan(6, 20, 2, disk_pages))


@pytest.mark.parametrize(
    "tokens, expected",
    [
        (0, Shares(0, 0, 0)),
        # The page that is not full is on the device alone.
        (100, Shares(2 * PAGE + 2 * SUMMARY, PAGE, 0)),
        (64 * 8, Shares(6 * PAGE + 8 * SUMMARY, 8 * PAGE, 0)),
    ],
)
def test_of_tiers_in_memory(tokens: int, expected: Shares) -> None:
    assert shares_of(store(0), tokens, 0, on_gpu=True) == expected
    saved = shares_of(store(0), tokens, tokens, on_gpu=True)
    assert saved.disk_bytes == LAYOUT.num_bytes(tokens)
    assert saved.host_bytes == expected.host_bytes


def test_of_tiers_with_the_disk() -> None:
    """Slabs 6 and 7 lie there: pages 12 to 15."""
    tiers = store(4)
    assert tiers.plan.absent == (6, 8)
    for pages, away in ((12, 0), (14, 2), (20, 4)):
        shares = shares_of(tiers, 64 * pages, 0, on_gpu=True)
        assert shares == Shares(6 * PAGE + pages * SUMMARY, (pages - away) * PAGE, away * PAGE)
    whole = shares_of(tiers, 64 * 20, 64 * 20, on_gpu=True)
    assert whole.disk_bytes == LAYOUT.num_bytes(64 * 20)


def test_of_one_place() -> None:
    plain = KVStore(LAYOUT, 640)
    num_bytes = LAYOUT.num_bytes(600)
    assert shares_of(plain, 600, 0, on_gpu=False) == Shares(0, num_bytes, 0)
    assert shares_of(plain, 600, 600, on_gpu=False) == Shares(0, 0, num_bytes)
    assert shares_of(plain, 600, 600, on_gpu=True) == Shares(num_bytes, 0, num_bytes)
    tight = KVStore(LAYOUT, 640, limit=HostLimit(1, Path("/tmp")))
    assert shares_of(tight, 600, 0, on_gpu=False) == Shares(0, 10 * SUMMARY, 10 * PAGE)


def test_while_it_is_read(tmp_path: Path) -> None:
    layout = Runner(tiny_model("llama")).layout
    page = layout.num_layers * layout.page_bytes
    for cache in (None, tmp_path / "cache"):
        _, events = read(tiered(4, tmp_path), request(cache, length=1200))
        told = [event for event in events if isinstance(event, Progress)]
        assert [event.saved for event in told] == [cache is not None] * len(told)
        last = told[-1]
        assert last.kv_device_bytes < SLOTS * page + num_pages(1200) * layout.summary_bytes * 4
        assert last.kv_host_bytes == (1200 // 64 - 4) * page
        assert last.kv_disk_bytes == (4 * page if cache is None else layout.num_bytes(1200))


def test_in_words() -> None:
    gib = 1 << 30
    memory = {"kv_bytes": 64 * gib, "kv_device_bytes": 6 * gib, "kv_host_bytes": 60 * gib}
    told = kv_places(memory | {"kv_disk_bytes": 2 * gib})
    assert told == (
        "keys and values 64.0 GiB: 6.0 GiB on the GPU, 60.0 GiB in main memory, 2.0 GiB in files"
    )
    assert kv_places({"kv_bytes": gib}) == "keys and values 1.0 GiB"
