"""Three tiers of keys and values on one GPU, beside all of them on the device.

Sections, each by itself and in this order:

* gate: answers of a tiered store are those of a store on the device, eager and in graphs.
* device: a context is read and decoded with everything on the device. The baseline.
* tiers: the same tokens with a few GiB of keys, values and summaries on the device, the rest in
  pinned memory; hit rates and bytes moved.
* long: a context that is too long for the device; random keys and values instead of reading. What
  pinned memory has no room for is kept on the device beside the slots, where that has room, and
  the share is said: those pages do not cross the bus. Else there are fewer layers, and the figure
  is scaled and says so.

The model has the shape of Llama-3.1-8B and random weights. Attention is timed with the queries of
real decode steps, one CUDA graph for each layer and kind of step, after the slots were filled with
pages that nobody wants.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass

import torch

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.benchmarks.engine import Report, environment
from hipcli.engine.benchmarks.engine_gpu import (
    event,
    graph_ms,
    keep_layers,
    llama_8b,
)
from hipcli.engine.benchmarks.tier_checks import check_tiers
from hipcli.engine.benchmarks.tier_options import host_gib, parse
from hipcli.engine.benchmarks.tier_parts import (
    CHUNK,
    attention_ms,
    fill,
    grow_memory,
    method,
    plan_of,
    table_bytes,
)
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore, num_pages
from hipcli.engine.store.tiered_store import TieredStore

# Steps whose queries are recorded and attended again, and steps of the whole model.
ATTENDED_STEPS, WARM_STEPS, TIMED_STEPS = 128, 48, 256
SPARE_TOKENS = ATTENDED_STEPS + WARM_STEPS + TIMED_STEPS + 2 * PAGE_TOKENS


@dataclass(slots=True)
class Bench:
    """What the sections share.

    Args:
        options: the command line.
        report: where figures go.
        runner: the model.
    """

    options: argparse.Namespace
    report: Report
    runner: Runner

    def tiered(self, capacity_tokens: int, device_gib: float, host_gib: float = 0) -> TieredStore:
        """An empty tiered store, see `plan_of`."""
        runner = self.runner
        plan = plan_of(runner.layout, capacity_tokens, device_gib, host_gib)
        print(f"   {plan.describe(runner.layout)}", flush=True)
        self.report.show("tiers: slots a layer", plan.slots, "pages")
        if plan.device_slabs:
            share = 100 * plan.device_slabs * plan.slab_pages / plan.capacity_pages
            self.report.show("tiers: pages that are on the device for good", share, "%")
        store = TieredStore(runner.layout, capacity_tokens, plan, runner.backend, runner.device)
        began = time.perf_counter()
        # Before anything is timed: pinning takes its time, and a reading hides a part of it.
        store._memory.slabs.grow(plan.capacity_pages)
        seconds = time.perf_counter() - began
        self.report.show("tiers: memory taken and pinned, not part of reading", seconds, "s")
        if store.unpinned:
            raise RuntimeError(f"main memory could not be pinned: {store.unpinned}")
        return store

    def read(self, name: str, store: KVStore, tokens: int) -> None:
        """Read random tokens, always the same, and time it."""
        ids = self.tokens(tokens, seed=1)
        attention, marks = PrefillPass(method()), []
        torch.cuda.synchronize()
        began = time.perf_counter()
        for low in range(0, tokens, CHUNK):
            high = min(low + CHUNK, tokens)
            step = StepInput(store, self.runner.tables, attention, low)
            self.runner.forward(ids[low:high], step)
            marks.append(event())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        self.report.show(
            f"{name}: read {tokens:,} tokens", seconds, "s", f"{tokens / seconds:,.0f} tok/s"
        )
        chunks = [a.elapsed_time(b) for a, b in zip(marks[:-1], marks[1:], strict=True)]
        if len(chunks) > 4:
            layers = store.layout.num_layers
            for place, what in ((1, "third"), (len(chunks) // 2, "middle"), (-1, "last")):
                self.report.show(f"{name}: {what} chunk, a layer", chunks[place] / layers, "ms")

    def tokens(self, count: int, seed: int) -> torch.Tensor:
        """Random token ids [count] on the device, the same for every store."""
        device = self.runner.device
        generator = torch.Generator(device).manual_seed(seed)
        vocab = self.runner.model.config.vocab_size
        return torch.randint(0, vocab, (count,), device=device, generator=generator)

    def traffic(self, name: str, store: KVStore, before: object = None) -> object:
        """Show what moved since `before`; returns where the counters are now."""
        now = store.traffic
        if not store.tiered:
            return now
        then = before or type(now)()
        wanted = now.wanted_pages - then.wanted_pages
        missed = now.missed_pages - then.missed_pages
        if wanted:
            self.report.show(f"{name}: hits", 100 * (1 - missed / wanted), "%", f"of {wanted:,}")
        for way in ("in", "out"):
            moved = getattr(now, f"bytes_{way}") - getattr(then, f"bytes_{way}")
            self.report.show(f"{name}: bytes {way}", moved / 2**30, "GiB")
        return now

    def attend(self, name: str, store: KVStore) -> None:
        """Attention of every layer and step alone; mean and p99 of a layer."""
        began = store.length
        steps = self._recorded(store)
        if store.tiered:
            self._forget_slots(store)
        before = store.traffic
        times = attention_ms(self.runner, store, steps)
        spread = sorted(ms for _, ms in times)
        self.report.show(f"{name}: attention, a layer, mean", statistics.fmean(spread), "ms")
        self.report.show(f"{name}: attention, a layer, p99", spread[int(0.99 * len(spread))], "ms")
        self.report.show(f"{name}: attention, a layer, longest", spread[-1], "ms")
        for what in ("keep", "blocks", "pages"):
            some = [ms for kind, ms in times if kind == what]
            if some:
                share = f"{len(some)} of {len(times)}"
                self.report.show(f"{name}: attention, {what}", statistics.median(some), "ms", share)
        self.traffic(f"{name}: attention", store, before)
        store.truncate(began)

    def _recorded(self, store: KVStore) -> list[tuple[tuple[str, ...], list[torch.Tensor]]]:
        """What each layer does and the queries of each layer, step by step."""
        decoder = DeviceDecoder(self.runner, store, AnswerPass(method()), graphs=False)
        attention, steps = decoder.attention, []
        attend, queries = attention.attend, []

        def recorded(layer: int, q: torch.Tensor, step: object) -> torch.Tensor:
            queries.append((q.clone(), step.softmax_scale))
            return attend(layer, q, step)

        attention.attend = recorded
        for token in self.tokens(ATTENDED_STEPS, seed=2):
            decoder.feed(token)
            decoder.step()
            steps.append((attention.phase.layers, list(queries)))
            queries.clear()
        return steps

    def _forget_slots(self, store: KVStore) -> None:
        """Fill all slots that may make way with pages that nobody wants."""
        first = method().geometry.sink_tokens // PAGE_TOKENS
        last = max(first + 1, store.length // PAGE_TOKENS - 32)
        for layer in range(store.layout.num_layers):
            pages = torch.randperm(last - first, device=store.device)[: store.room].int() + first
            store.fetch(layer, pages.expand(store.layout.num_kv_heads, -1).contiguous())

    def decode(self, name: str, store: KVStore, scale: float = 1.0) -> None:
        """Tokens a second of the whole model, sampled and fetched.

        Args:
            scale: how many times the model's layers those of the runner are.
        """
        before = store.traffic
        decoder = DeviceDecoder(self.runner, store, AnswerPass(method()))
        sampler, times = Sampler(1.0, 0), []
        even = torch.zeros(decoder.logits.shape, device=store.device)
        tokens = decoder.tokens(even, sampler, WARM_STEPS + TIMED_STEPS)
        kinds: Counter[str] = Counter()
        last = time.perf_counter()
        for _ in tokens:
            now = time.perf_counter()
            times.append(now - last)
            kinds[decoder.what] += 1
            last = now
        self.report.show(
            f"{name}: first {WARM_STEPS} tokens, with captures", sum(times[:WARM_STEPS]), "s"
        )
        timed = times[WARM_STEPS:]
        each = statistics.fmean(timed)
        slowest = 1e3 * sorted(timed)[int(0.99 * len(timed))]
        note = f"p99 of a token {slowest:.1f} ms, {len(kinds)} kinds of steps"
        if scale > 1:
            head = self.head_s()
            each = head + (each - head) * scale
            note += f", scaled by {scale:.2f} from {store.layout.num_layers} layers"
        self.report.show(f"{name}: decode", 1 / each, "tok/s", note)
        self.traffic(f"{name}: decode", store, before)

    def head_s(self) -> float:
        """The output layer alone: what does not scale with the number of layers."""
        x = torch.randn(1, 1, 4096, dtype=torch.bfloat16, device="cuda")
        return graph_ms(lambda: self.runner.model.lm_head(x)) / 1e3


def on_device(bench: Bench) -> None:
    """The baseline: everything on the device."""
    tokens = bench.options.context
    store = bench.runner.new_store(tokens + SPARE_TOKENS)
    bench.read("device", store, tokens)
    bench.attend("device", store)
    bench.decode("device", store)


def in_tiers(bench: Bench) -> None:
    """The same with most of it in pinned memory."""
    tokens = bench.options.context
    store = bench.tiered(tokens + SPARE_TOKENS, bench.options.device_gib)
    bench.report.show("tiers: page tables and slots", table_bytes(store) / 1e6, "MB")
    bench.read("tiers", store, tokens)
    bench.traffic("tiers: read", store)
    bench.attend("tiers", store)
    bench.decode("tiers", store)


def long_context(bench: Bench) -> None:
    """A context longer than the device, with the layers whose pages there is room for."""
    tokens, options = bench.options.long, bench.options
    layout = bench.runner.layout
    of_layer = num_pages(tokens + SPARE_TOKENS) * layout.page_bytes
    room = options.host_gib + options.long_held_gib
    layers = min(options.layers, int(room * 2**30 // of_layer))
    if layers < layout.num_layers:
        print(f"   memory holds {layers} of {options.layers} layers: the rest is left out")
        bench.runner = keep_layers(bench.runner, layers)
    share = layers / options.layers
    store = bench.tiered(tokens + SPARE_TOKENS, options.long_device_gib * share, options.host_gib)
    bench.report.show("long: page tables and slots", table_bytes(store) / 1e6, "MB")
    began = time.perf_counter()
    fill(store, tokens)
    torch.cuda.synchronize()
    bench.report.show("long: filled", time.perf_counter() - began, "s")
    bench.attend("long", store)
    bench.decode("long", store, scale=1 / share)


def main(words: list[str] | None = None) -> int:
    """Check, time, print. Returns the exit code."""
    options = parse(words, __doc__ or "")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    report = Report(options.only, options.limit_s)
    growing = grow_memory(host_gib(options))
    report.section("gate", check_tiers)
    if "gate" not in report.errors and options.only != ["gate"]:
        bench = Bench(options, report, Runner(llama_8b(options.layers), "fp8_e4m3"))
        for name, run in (("device", on_device), ("tiers", in_tiers), ("long", long_context)):
            if name != "device":
                growing.join()
            report.section(name, lambda run=run: run(bench))
            gc.collect()
            torch.cuda.empty_cache()
    line = {
        **environment("cuda"),
        "results": report.results,
        "errors": report.errors,
        "seconds": round(report.elapsed_s, 1),
    }
    print(json.dumps(line))
    return 1 if report.errors else 0
