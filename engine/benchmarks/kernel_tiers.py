"""The sections of `benchmarks/kernels.py` for keys and values that are not all on the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hipcli.engine.benchmarks.kernel_cases import (
    CANDIDATE_PAGES,
    CHUNK,
    DISTANCE,
    LOCAL_TOKENS,
    SELECTED_BLOCKS,
    Bench,
    Layer,
    graph_ms,
    median_ms,
)
from hipcli.engine.benchmarks.kernel_checks import DEVICE, SCALE
from hipcli.engine.benchmarks.kernel_fp8 import Fp8Bench
from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.kernels.fetch_pages import triton_impl as fetch_impl
from hipcli.kernels.plan_fetch import plan_fetch_, plan_values_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import QUARTERS, HostPages, PagedKV, SlotTables, SparsePlan
from hipcli.kernels.vote import vote

# 131 KB a page of the Llama-3.1-8B shape in fp8: half a gigabyte on each side.
PAGES = 4096
SLAB_PAGES = 512
ROUNDS = 5


@dataclass(frozen=True)
class Tiers:
    """Slots on the device, and as many pages in pinned memory."""

    kv: PagedKV
    host: HostPages
    slabs: list[torch.Tensor]
    record_bytes: int

    def moves(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`count` random pages of every KV head, and random slots for them."""
        shuffled = [torch.randperm(PAGES, device=DEVICE)[:count] for _ in range(16)]
        lists = torch.stack(shuffled).int().unflatten(0, (2, 8))
        return lists[0].contiguous(), lists[1].contiguous()


def new_tiers() -> Tiers:
    """Random bytes in pinned memory."""
    layout = KVLayout(1, 8, 128, torch.bfloat16, kv_dtype="fp8_e4m3")
    kv = KVStore(layout, PAGES * 64, "triton", DEVICE).kv[0]
    shape = (SLAB_PAGES, layout.page_bytes)
    slabs = []
    for _ in range(PAGES // SLAB_PAGES):
        slab = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        slabs.append(slab.copy_(torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)))
    bases = torch.tensor([slab.data_ptr() for slab in slabs], device=DEVICE)
    return Tiers(kv, HostPages(bases, SLAB_PAGES), slabs, layout.page_bytes)


def check_fetch() -> None:
    """What was fetched must be what is in pinned memory: keys, values and the scales of both."""
    tiers = new_tiers()
    kv = tiers.kv
    whole = torch.cat(tiers.slabs)
    pages, slots = tiers.moves(PAGES)
    fetch_impl.launch_fetch(kv, tiers.host, pages, slots)
    run = 64 * 128
    for head, (wanted, places) in enumerate(zip(pages.cpu().long(), slots.long(), strict=True)):
        rows = whole[wanted]
        for part, (values, scales) in enumerate(
            ((kv.k_pages, kv.k_scales), (kv.v_pages, kv.v_scales))
        ):
            begin, scale = (part * 8 + head) * run, 2 * 8 * run + (part * 8 + head) * 4
            here = values[places, head].view(torch.uint8).flatten(1).cpu()
            factors = scales[places, head, None].view(torch.uint8).cpu()
            fetched = torch.cat([here, factors], 1)
            expected = torch.cat([rows[:, begin : begin + run], rows[:, scale : scale + 4]], 1)
            if not torch.equal(fetched, expected):
                raise AssertionError(f"pages of KV head {head} are not what is in pinned memory")
    print("right  fetch_pages", flush=True)


def paired_ms(
    one: Callable[[], float], other: Callable[[], float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Best and median of both, timed in turns."""
    first, second = zip(*((one(), other()) for _ in range(ROUNDS)), strict=True)
    return (min(first), statistics.median(first)), (min(second), statistics.median(second))


class TierBench:
    """Moves of pages, and the operators under both kinds of page tables."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._fp8 = Fp8Bench(bench)

    def fetch(self) -> None:
        """Bytes a second from pinned memory, beside copies of one run by the engine."""
        tiers = new_tiers()
        slots = torch.empty_like(tiers.slabs[0], device=DEVICE)
        run = tiers.slabs[0]
        self._show("copy engine, to the device", lambda: slots.copy_(run, non_blocking=True), 512)
        self._show("copy engine, to the host", lambda: run.copy_(slots, non_blocking=True), 512)
        for count in (256, PAGES):
            self._fetch(tiers, count)

    def _fetch(self, tiers: Tiers, count: int) -> None:
        """Moves of `count` pages of each KV head, of a part of them, and of none."""
        pages, places = tiers.moves(count)
        for programs, warps in ((64, 4), (16, 4), (32, 4), (256, 4)):
            tile = fetch_impl.Tile(programs=programs, num_warps=warps)
            self._show(
                f"fetch {count} x 8, {programs} programs, {warps} warps",
                lambda t=tile: fetch_impl.launch_fetch(tiers.kv, tiers.host, pages, places, t),
                count,
            )
        self._show(
            f"fetch {count} x 8, keys",
            lambda: fetch_impl.launch_fetch(tiers.kv, tiers.host, pages, places, what=1),
            count / 2,
        )
        quarters = pages * QUARTERS
        for programs in (64, 128, 256):
            tile = fetch_impl.Tile(programs=programs)
            self._show(
                f"fetch {count} x 8, a quarter of the values, {programs} programs",
                lambda t=tile: fetch_impl.launch_fetch(
                    tiers.kv, tiers.host, quarters, places, t, what=0
                ),
                count / (2 * QUARTERS),
            )
        few = torch.where(torch.rand(pages.shape, device=DEVICE) < 0.1, pages, -1)
        if count == CANDIDATE_PAGES:
            self._plan(pages, few)
        for words, listed in (("a tenth of", few), ("none of", torch.full_like(pages, -1))):
            self._show(
                f"fetch {words} {count} x 8",
                lambda p=listed: fetch_impl.launch_fetch(tiers.kv, tiers.host, p, places),
                int((listed >= 0).sum()) / 8,
            )

    def _plan(self, pages: torch.Tensor, few: torch.Tensor) -> None:
        """Plans for lists that miss most of their pages, and for one that misses none."""

        def full(value: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, value, dtype=dtype, device=DEVICE)

        tables = SlotTables(
            full(-1, 8, PAGES), full(-1, 8, 960), full(0, 8, 960), full(0, 1),
            torch.tensor([4, PAGES], dtype=torch.int32, device=DEVICE),
            full(0, 3, dtype=torch.int64), full(0, 8, 960, QUARTERS, dtype=torch.uint8),
        )  # fmt: skip
        others = [pages, *((pages + step) % PAGES for step in (7, 14, 21, 28, 35))]
        ms = graph_ms(lambda _: [plan_fetch_(tables, x) for x in others], self.bench.layers[:1])
        self.bench.show(f"tiers: plan {pages.shape[1]} x 8, misses", ms / len(others))
        ms = graph_ms(lambda _: plan_fetch_(tables, few), self.bench.layers[:1])
        self.bench.show(f"tiers: plan {pages.shape[1]} x 8, all there", ms)
        quarters = (few * QUARTERS)[:, :SELECTED_BLOCKS].contiguous()
        ms = graph_ms(lambda _: plan_values_(tables, quarters), self.bench.layers[:1])
        self.bench.show(f"tiers: plan values {quarters.shape[1]} x 8", ms)

    def _show(self, name: str, run: Callable[[], object], pages: float) -> None:
        """Time moving so many pages of all KV heads."""
        ms = graph_ms(lambda _: run(), self.bench.layers[:1])
        # A record of fp8 pages of 8 KV heads, its scales included.
        self.bench.show(f"tiers: {name}", ms, f"{pages * 131200 / ms / 1e6:6.1f} GB/s")

    def tables(self) -> None:
        """Operators under a table of each KV head beside a shared one, in turns."""
        shared = self._fp8.layers
        own = [
            replace(x, kv=replace(x.kv, page_table=x.kv.page_table.expand(8, -1).contiguous()))
            for x in shared
        ]
        for name, run, in_graph in self._operators(shared[0]):
            if in_graph:
                timed = [lambda x=x, r=run: graph_ms(r, x) for x in (shared, own)]
            else:
                timed = [lambda x=x, r=run: median_ms(lambda: r(x[0]), 10) for x in (shared, own)]
            (best, middle), (own_best, own_middle) = paired_ms(*timed)
            self.bench.show(f"tiers: {name}, shared table", middle)
            note = f"{own_best / best:.3f} x best, {own_middle / middle:.3f} x median"
            self.bench.show(f"tiers: {name}, own tables", own_middle, note)

    def _operators(self, first: Layer) -> list[tuple[str, Callable[[Layer], object], bool]]:
        """Name, call, and whether a CUDA graph holds it."""
        bench, rope = self.bench, self.bench.half_rope
        scores = score_pages(first.q, first.index, bench.start, rope, DISTANCE, 1, 1, 256)
        pages = select_blocks(scores, CANDIDATE_PAGES)
        q, starts = bench.prefill_inputs()
        scores = score_pages(q, first.index, starts, rope, DISTANCE, 64, 4, 256)
        listed = select_blocks(scores, CANDIDATE_PAGES)
        small = score_blocks(q, first.kv, listed, rope, DISTANCE, 64, 16, 4)
        chosen = select_blocks(small, SELECTED_BLOCKS, listed)
        plan = SparsePlan(chosen, starts, 64, 16, 256, LOCAL_TOKENS)
        few = torch.randn(16, 32, 128, dtype=torch.bfloat16, device=DEVICE)
        return [
            (f"sparse_prefill, {CHUNK} queries", lambda x: sparse_prefill(
                q, x.kv, plan, rope, bench.length, SCALE), False),
            ("vote, 16 tokens", lambda x: vote(
                few, x.kv, bench.length, bench.rope, DISTANCE, SCALE), True),
            ("decode step", lambda x: bench.full_step(x, x.index, rope, True), True),
            ("sparse_decode", lambda x: bench.attend(x, x.plan, rope, True), True),
            ("score_blocks, 1 query", lambda x: score_blocks(
                x.q, x.kv, pages, rope, DISTANCE, 1, 16, 1), True),
            (f"score_blocks, {CHUNK} queries", lambda x: score_blocks(
                q, x.kv, listed, rope, DISTANCE, 64, 16, 4), False),
        ]  # fmt: skip


def tier_sections(bench: Bench) -> list[tuple[str, Callable[[], None]]]:
    """What every run times beside `kernel_cases.sections`; `--only tiers` runs these alone."""
    tiers = TierBench(bench)
    return [("tiers fetch", tiers.fetch), ("tiers tables", tiers.tables)]
