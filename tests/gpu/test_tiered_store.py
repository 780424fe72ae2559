"""A store of three tiers on a GPU: pinned memory, graphs, and sessions for every kind of store."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from hipcli.engine.forward.runner import Runner
from hipcli.engine.store import slabs
from hipcli.engine.store.layout import KVLayout, num_pages
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.pages import KVStore
from hipcli.engine.store.tiered_store import TieredStore
from hipcli.engine.store.tiers import TierPlan
from tests.engine.test_sessions import read, request
from tests.engine.test_tiered_store import attended, compare, fill
from tests.gpu.test_engine import answer
from tests.gpu.wide import wide_model

pytestmark = pytest.mark.gpu
LAYOUTS = {
    "bf16": KVLayout(2, 4, 128, torch.bfloat16),
    "fp8": KVLayout(2, 4, 128, torch.bfloat16, kv_dtype="fp8_e4m3"),
}
TOKENS = 1500


def both(name: str, disk_pages: int = 0) -> tuple[KVStore, TieredStore]:
    layout, plan = LAYOUTS[name], TierPlan(14, num_pages(TOKENS), 4, disk_pages)
    stores = (
        KVStore(layout, TOKENS, "triton", "cuda"),
        TieredStore(layout, TOKENS, plan, "triton", "cuda"),
    )
    for store in stores:
        fill(store, 0, TOKENS)
    return stores


def wanted(store: TieredStore, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (store.layout.num_kv_heads, min(store.room, 6))
    return torch.randint(-1, 23, shape, generator=generator).int().cuda()


def compare_all(store: KVStore, tiered: TieredStore, layer: int, pages: torch.Tensor) -> None:
    for head, row in enumerate(pages.tolist()):
        for page in {0, *row} - {-1}:
            compare(store, tiered, layer, head, page)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("pinned", [True, False])
def test_fetched_pages(name: str, pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pinned:
        monkeypatch.setattr(slabs, "pin", lambda memory, device: "error 2")
    store, tiered = both(name)
    assert tiered.fetches_in_graphs == pinned
    assert bool(tiered.unpinned) != pinned
    for seed in range(12):
        pages = wanted(tiered, seed)
        tiered.fetch(seed % 2, pages)
        compare_all(store, tiered, seed % 2, pages)
    assert tiered.traffic.missed_pages > 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_graph_holds_a_fetch(name: str) -> None:
    store, tiered = both(name)
    assert tiered.fetches_in_graphs
    pages = wanted(tiered, 0).clone()
    for layer in range(2):
        tiered.fetch(layer, pages)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(2):
            tiered.fetch(layer, pages)
    for seed in range(1, 12):
        pages.copy_(wanted(tiered, seed))
        graph.replay()
        for layer in range(2):
            compare_all(store, tiered, layer, pages)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_graph_holds_keys_and_then_values(name: str) -> None:
    """Values of the first block of sixteen tokens of each page, all else as it happens to be."""
    store, tiered = both(name)
    pages = wanted(tiered, 0).clone()
    blocks = torch.where(pages >= 0, pages * 4, -1)

    def fetch() -> None:
        blocks.copy_(torch.where(pages >= 0, pages * 4, -1))
        for layer in range(2):
            tiered.fetch(layer, pages, keys_only=True)
            tiered.fetch_values(layer, blocks, 16)

    assert tiered.fetches_in_graphs
    fetch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fetch()
    for seed in range(1, 12):
        pages.copy_(wanted(tiered, seed))
        graph.replay()
        for layer, head in itertools.product(range(2), range(len(pages))):
            for page in set(pages[head].tolist()) - {-1}:
                pair = (attended(one, layer, head, page) for one in (store, tiered))
                (k, v, *scales), (found_k, found_v, *found_scales) = pair
                assert torch.equal(found_k, k) and torch.equal(found_v[:16], v[:16])
                assert all(a == b for a, b in zip(found_scales, scales, strict=True))
    # Whole pages again, wherever their values are.
    tiered.fetch(0, pages)
    compare_all(store, tiered, 0, pages)


@pytest.mark.parametrize("name", LAYOUTS)
def test_pieces_and_tails(name: str) -> None:
    store, tiered = both(name)
    for layer in range(2):
        pairs = zip(store.tokens(layer, TOKENS), tiered.tokens(layer, TOKENS), strict=True)
        for right, found in pairs:
            assert torch.equal(right, found)
        for first, kv in tiered.key_pieces(layer, 0, num_pages(TOKENS), values=False):
            for place in range(len(kv.page_table)):
                right = attended(store, layer, 1, first + place)
                tokens = min(64, TOKENS - (first + place) * 64)
                assert torch.equal(kv.k_pages[place, 1, :tokens].float(), right[0][:tokens])
                assert kv.k_scales is None or kv.k_scales[place, 1] == right[2]
    tail = tiered.tail()
    tiered.rewind(tail)
    fill(tiered, TOKENS - TOKENS % 64, TOKENS)
    compare(store, tiered, 1, 2, TOKENS // 64)


def test_a_system_that_pins_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the refusal meets nobody else."""

    def refuse(address: int, num_bytes: int, flags: int) -> int:
        return 2

    monkeypatch.setattr(torch.cuda.cudart(), "cudaHostRegister", refuse)
    store, tiered = both("fp8")
    assert tiered.unpinned == "error 2" and not tiered.fetches_in_graphs
    pages = wanted(tiered, 3)
    tiered.fetch(0, pages)
    compare_all(store, tiered, 0, pages)


def tiers_of(runner: Runner, disk_pages: int, device_slabs: int, folder: Path) -> Runner:
    def plan(_: object, tokens: int) -> TierPlan | None:
        pages = num_pages(tokens)
        limit = HostLimit(1 << 30, folder)
        return TierPlan(18, pages, 2, disk_pages, limit, device_slabs=device_slabs)

    runner.tiers = plan
    return runner


@pytest.mark.parametrize("disk_pages, device_slabs", [(0, 0), (8, 0), (0, 3)])
@pytest.mark.parametrize("written_in_tiers", [True, False])
def test_sessions_serve_both(
    tmp_path: Path, disk_pages: int, device_slabs: int, written_in_tiers: bool
) -> None:
    whole = Runner(wide_model(torch.float32).to("cuda"))
    runner = Runner(wide_model(torch.float32).to("cuda"))
    tiers = tiers_of(runner, disk_pages, device_slabs, tmp_path)
    writer, reader = (tiers, whole) if written_in_tiers else (whole, tiers)
    ask = request(tmp_path / "cache", length=1500)
    first, _ = read(writer, ask)
    assert first.store.tiered == written_in_tiers
    expected = answer(writer, first, ask)
    warm, _ = read(reader, ask)
    assert warm.session.reused
    assert answer(reader, warm, ask) == expected
