"""Sections of the GPU run of `benchmarks/engine.py`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from hipcli.engine.answering.decoding import DeviceDecoder
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.benchmarks.engine_checks import check_all
from hipcli.engine.device import GPU_CHUNK_TOKENS, GPU_DENSE_TOKENS, free_bytes
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.configs import HipConfig, WindowConfig
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.methods.window import WindowMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from hipcli.engine.store.pages import KVStore

if TYPE_CHECKING:
    from hipcli.engine.benchmarks.engine import Report

CHUNK = GPU_CHUNK_TOKENS
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
DENSE = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
# Beside weights and KV: activations of a chunk, scores, graphs.
RESERVE_BYTES = 5 << 30
WARM_STEPS, TIMED_STEPS = 40, 160


def llama_8b(layers: int) -> LlamaForCausalLM:
    """Llama-3.1-8B's shape with random bf16 weights, made on the GPU."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(False)


def keep_layers(runner: Runner, layers: int) -> Runner:
    """The same model with its first layers only."""
    model = runner.model
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    torch.cuda.empty_cache()
    rotary = runner.tables.rotary
    model.model.rotary_emb = rotary
    return Runner(model, runner.layout.kv_dtype)


def hip() -> HipMethod:
    """The plan of the targets: 256 sinks, a window of 1,024, 2,048 selected tokens."""
    config = HipConfig(prefill_budget_tokens=2048, budget_tokens=2048)
    return HipMethod(config, dense_floor_tokens=GPU_DENSE_TOKENS)


def little_window() -> WindowMethod:
    """Attention that costs next to nothing: what is left is the rest of the model."""
    return WindowMethod(WindowConfig(sink_tokens=64, window_tokens=64))


def event() -> torch.cuda.Event:
    """A recorded timing event."""
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


class Bench:
    """The model and what every section needs."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.options = options
        self.report = report
        self.layers: int = options.layers
        self.runner = Runner(llama_8b(options.layers), options.kv_dtype)
        weights = torch.cuda.memory_allocated() / 2**30
        report.show("weights", weights, "GiB")

    def read(self, method, store: KVStore, start: int, end: int) -> list[torch.cuda.Event]:
        """Read random tokens [start, end) in chunks; events before, between and after them."""
        attention = PrefillPass(method)
        events = [event()]
        for low in range(start, end, CHUNK):
            high = min(low + CHUNK, end)
            ids = torch.randint(0, 128256, (high - low,), device="cuda")
            self.runner.forward(ids, StepInput(store, self.runner.tables, attention, low))
            events.append(event())
        return events

    def warm_read(self, method) -> None:
        """Compile and load what reading needs, at the end of a short context."""
        store = self.runner.new_store(3 * CHUNK)
        self.read(method, store, 0, 3 * CHUNK)
        torch.cuda.synchronize()

    def prefill(self, name: str, method, store: KVStore, length: int) -> float:
        """Time a whole document; seconds, scaled to all layers."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        events = self.read(method, store, 0, length)
        torch.cuda.synchronize()
        scale = self.options.layers / self.layers
        seconds = (time.perf_counter() - began) * scale
        chunks = [a.elapsed_time(b) for a, b in zip(events[:-1], events[1:], strict=True)]
        note = f"{length / seconds:,.0f} tok/s"
        if scale > 1:
            note += f", {self.layers} layers ran, times {self.options.layers}/{self.layers}"
        self.report.show(f"{name}: read {length:,} tokens", seconds, "s", note)
        if len(chunks) > 2:
            self.report.show(f"{name}: second chunk, a layer", chunks[1] / self.layers, "ms")
            self.report.show(f"{name}: last chunk, a layer", chunks[-1] / self.layers, "ms")
        peak = torch.cuda.max_memory_allocated() / 2**30
        self.report.show(f"{name}: peak memory reading", peak, "GiB")
        return seconds

    def decoder(self, method, store: KVStore) -> DeviceDecoder:
        """A decoder that has run every kind of step twice."""
        decoder = DeviceDecoder(self.runner, store, AnswerPass(method))
        for _ in range(WARM_STEPS):
            decoder.step()
        torch.cuda.synchronize()
        return decoder

    def decode(self, name: str, method, store: KVStore) -> dict[str, float]:
        """Decode from the end of the store; medians a step in ms by kind of step."""
        decoder = self.decoder(method, store)
        times = defaultdict(list)
        for _ in range(TIMED_STEPS):
            before = event()
            decoder.step()
            times[decoder.what].append((before, event()))
        torch.cuda.synchronize()
        medians = {}
        for what, pairs in times.items():
            medians[what] = statistics.median(a.elapsed_time(b) for a, b in pairs)
            self.report.show(f"{name}: step, {what}", medians[what], "ms")
        tokens = decoder.tokens(decoder.logits, Sampler(0, 0), TIMED_STEPS)
        next(tokens)
        began = time.perf_counter()
        count = sum(1 for _ in tokens)
        each = (time.perf_counter() - began) / count
        if self.layers < self.options.layers:
            head = self.head_ms() / 1e3
            each = head + (each - head) * self.options.layers / self.layers
        self.report.show(f"{name}: decode, sampled and fetched", 1 / each, "tok/s")
        return medians

    def head_ms(self) -> float:
        """The output layer alone: what does not scale with the number of layers."""
        x = torch.randn(1, 1, 4096, dtype=torch.bfloat16, device="cuda")
        return graph_ms(lambda: self.runner.model.lm_head(x))


@torch.inference_mode()
def graph_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """Device time of one call in a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(repeats):
        before = event()
        graph.replay()
        times.append((before, event()))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in times)


def dense_ms(queries: int, keys: int) -> float:
    """One layer's dense attention by the faster of SDPA's kernels.

    For a chunk, keys less half a chunk stand for the causal mask's average.
    """
    q = torch.randn(1, HEADS, queries, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    shape = (1, KV_HEADS, keys if queries == 1 else keys - queries // 2, HEAD_DIM)
    k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    best = float("inf")
    for name, backend in DENSE.items():
        try:
            with sdpa_kernel(backend):
                run = lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
                best = min(best, graph_ms(run, 20 if queries == 1 else 3))
        except RuntimeError as error:
            print(f"   SDPA {name}: {error}"[:160])
    return best


def dense_baselines(bench: Bench) -> None:
    """Dense attention timed alone, the rest of the model with a window of 64."""
    report, layers = bench.report, bench.options.layers
    bench.warm_read(little_window())
    store = bench.runner.new_store(4 * CHUNK)
    events = bench.read(little_window(), store, 0, 4 * CHUNK)
    torch.cuda.synchronize()
    rest_ms = statistics.median(
        a.elapsed_time(b) for a, b in zip(events[1:-1], events[2:], strict=True)
    )
    report.show("rest of the model, a chunk of 8,192", rest_ms, "ms", "attention to 128 tokens")
    steps = bench.decode("rest of the model", little_window(), bench.runner.new_store(4096))
    del store
    for context in bench.options.contexts:
        step = dense_ms(1, context)
        report.show(f"dense step at {context:,}, a layer", step, "ms")
        total = steps["keep"] + layers * step
        report.show(f"dense decode at {context:,}, sum of parts", 1e3 / total, "tok/s")
        last = dense_ms(CHUNK, context)
        report.show(f"dense chunk at the end of {context:,}, a layer", last, "ms")
        # The cost of a chunk grows linearly from half a chunk of keys to all of them.
        chunks = context // CHUNK
        whole = chunks * (rest_ms + layers * last / 2) / 1e3
        report.show(f"dense: read {context:,} tokens, sum of parts", whole, "s")


def short_contexts(bench: Bench) -> None:
    """hip beside dense attention where dense is fast."""
    for length in (4096, 8192, 16384, 32768):
        for name, method in (("hip", hip()), ("dense", DenseMethod())):
            seconds = []
            for _ in range(3):
                store = bench.runner.new_store(length + 512)
                events = bench.read(method, store, 0, length)
                torch.cuda.synchronize()
                seconds.append(events[0].elapsed_time(events[-1]))
            bench.report.show(f"{name}: read {length:,} tokens", min(seconds), "ms")
            decoder = bench.decoder(method, store)
            before = event()
            for _ in range(64):
                decoder.step()
            after = event()
            torch.cuda.synchronize()
            bench.report.show(f"{name}: step at {length:,}", before.elapsed_time(after) / 64, "ms")


def long_context(bench: Bench, context: int) -> None:
    """Read and decode; with fewer layers where the KV of all does not fit."""
    spare = WARM_STEPS + 2 * TIMED_STEPS + 8
    pages = bench.runner.layout.num_bytes(context + spare) // bench.runner.layout.num_layers
    room = free_bytes(torch.device("cuda")) - RESERVE_BYTES
    layer_bytes = sum(p.numel() * 2 for p in bench.runner.model.model.layers[0].parameters())
    # A layer that is left out frees its weights too.
    missing = max(0, bench.layers * pages - room)
    drop = -(-missing // (pages + layer_bytes))
    if drop:
        bench.layers -= drop
        print(f"   the KV of all layers does not fit: {bench.layers} layers run", flush=True)
        bench.runner = keep_layers(bench.runner, bench.layers)
    store = bench.runner.new_store(context + spare)
    bench.prefill(f"hip {context:,}", hip(), store, context)
    bench.decode(f"hip {context:,}", hip(), store)


def profile(bench: Bench) -> None:
    """Where a chunk and the steps of each kind spend their time, at 131,072 tokens."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    context, method = 131072, hip()
    store = bench.runner.new_store(context + 512)
    bench.read(method, store, 0, context)
    torch.cuda.synchronize()

    def show(name: str, run: Callable[[], object]) -> None:
        with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
            run()
            torch.cuda.synchronize()
        rows = [row for row in recorded.key_averages() if row.self_device_time_total > 0]
        rows.sort(key=lambda row: -row.self_device_time_total)
        total = sum(row.self_device_time_total for row in rows)
        print(f"   {name}: {total / 1e3:.2f} ms on the device")
        for row in rows[:16]:
            time_ms = row.self_device_time_total / 1e3
            print(f"      {time_ms:9.3f} ms {row.count:6d} x  {row.key[:90]}")

    last = context - CHUNK
    show("last chunk", lambda: bench.read(method, store, last, context))
    decoder = bench.decoder(method, store)
    for count in (1, 3, 12):
        show(f"{count} steps", lambda count=count: run_steps(decoder, count))


def run_steps(decoder: DeviceDecoder, count: int) -> None:
    """Some steps; their kinds are printed."""
    kinds = []
    for _ in range(count):
        decoder.step()
        kinds.append(decoder.what)
    print(f"   kinds of steps: {' '.join(kinds)}")


def run_all(options: argparse.Namespace, report: Report) -> None:
    """All sections in order; only what is right is timed."""
    report.section("gate", lambda: check_all(options.kv_dtype))
    if "gate" in report.errors:
        return
    if options.only == ["gate"]:
        return
    one = Bench(options, report)
    report.section("warm", lambda: one.warm_read(hip()))
    report.section("short", lambda: short_contexts(one))
    report.section("dense", lambda: dense_baselines(one))
    for context in options.contexts:
        name = f"{context // 1024}k" if context < 1 << 20 else f"{context >> 20}m"
        report.section(name, lambda context=context: long_context(one, context))
        torch.cuda.empty_cache()
    if options.only and "profile" in options.only:
        report.section("profile", lambda: profile(one))
