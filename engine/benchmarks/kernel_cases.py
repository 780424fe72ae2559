"""What `benchmarks/kernels.py` times: buffers of several layers, and the sections of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as dense

from hipcli.engine.benchmarks.kernel_checks import DEVICE, SCALE, paged, random_plan, tables
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.select_step import triton_impl as step_impl
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, PageIndex, RopeTables, SelectionSizes, SparsePlan
from hipcli.kernels.vote import vote

CHUNK = 8192
PREFILL_CHUNK = f"prefill chunk {CHUNK:,}"
NUM_LAYERS = 4
CANDIDATE_PAGES = 256
SELECTED_BLOCKS = 128
DISTANCE = 1024
DENSE = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
LOCAL_TOKENS = 256 + 2048 + 1024 + 192
ONE_QUERY = SelectionSizes(DISTANCE, 1, 16, 1, 256, CANDIDATE_PAGES, SELECTED_BLOCKS)
QUERY_BLOCKS = SelectionSizes(DISTANCE, 64, 16, 4, 256, CANDIDATE_PAGES, SELECTED_BLOCKS)


@dataclass(frozen=True)
class Layer:
    """One layer's buffers; four of them exceed the L2 cache many times over."""

    kv: PagedKV
    index: PageIndex
    index_fp8: PageIndex
    q: torch.Tensor
    plan: SparsePlan


def median_ms(run: Callable[[], object], repeats: int = 20) -> float:
    """Median device time of one call, by events, after warming up."""
    run()
    run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def graph_ms(run: Callable[[Layer], object], layers: list[Layer]) -> float:
    """Device time a layer of `run` over all layers, captured in one CUDA graph."""
    for layer in layers:
        run(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            for layer in layers:
                run(layer)
    return median_ms(graph.replay) / (4 * len(layers))


def speedups(results: Mapping[str, object], name: str) -> dict[str, float]:
    """How many times faster an entry is than each dense baseline that was timed before it.

    Args:
        results: milliseconds by entry, all of one context.
        name: a whole step, "decode, ..." or "prefill chunk 8,192, ..."; parts have no baseline.
    """
    step = next((word for word in ("decode", PREFILL_CHUNK) if name.startswith(word + ",")), None)
    if step is None or "SDPA" in name:
        return {}
    dense_ms = {kind: results.get(f"{step}, SDPA {kind}") for kind in DENSE}
    own = results[name]
    return {
        kind: round(ms / own, 2)
        for kind, ms in dense_ms.items()
        if isinstance(ms, float) and isinstance(own, float)
    }


class Bench:
    """Buffers and results of one context length."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.results: dict[str, object] = {}
        self.rope = tables()
        self.half_rope = tables(dtype=torch.float16)
        self.length = torch.tensor([context], dtype=torch.int32, device=DEVICE)
        start = (context - 1 - 1024) // 64 * 64
        self.start = torch.tensor([start], dtype=torch.int32, device=DEVICE)
        self.counters = torch.zeros(CHUNK, dtype=torch.int32, device=DEVICE)
        self.layers = [self._layer() for _ in range(NUM_LAYERS)]

    def _layer(self) -> Layer:
        kv = paged(self.context)
        shape = (8, self.context // 64, 128)
        made = []
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            index = new_page_index("bounds", shape, 64, dtype=dtype, device=DEVICE)
            update_page_index_(index, kv.k_pages, kv.page_table, self.length, self.context)
            made.append(index)
        q = torch.randn(1, 32, 128, dtype=torch.bfloat16, device=DEVICE)
        return Layer(kv, made[0], made[1], q, random_plan(1, 1, self.context - 1))

    def show(self, name: str, milliseconds: float, note: str = "") -> None:
        """Print and keep one time."""
        self.results[name] = round(milliseconds, 5)
        ratios = speedups(self.results, name)
        note = "  ".join([note, *(f"{ratio:.1f} x {kind}" for kind, ratio in ratios.items())])
        print(f"{self.context:>9,}  {name:44s} {milliseconds:9.4f} ms  {note}", flush=True)

    def attend(self, layer: Layer, plan: SparsePlan, rope: RopeTables, early: bool) -> torch.Tensor:
        """Attention of one decode step."""
        return decode_impl.launch(
            layer.q, layer.kv, plan, rope, self.length, SCALE, self.counters, None, early
        )[0]

    def full_step(
        self, layer: Layer, index: PageIndex, rope: RopeTables, early: bool
    ) -> torch.Tensor:
        """Tail summary, selection, attention."""
        chosen = step_impl.launch(
            layer.q, layer.kv, index, self.start, self.length, rope, ONE_QUERY, self.counters,
            step_impl.Variant(early=early),
        )  # fmt: skip
        plan = SparsePlan(chosen, self.start, 1, 16, 256, LOCAL_TOKENS)
        return self.attend(layer, plan, rope, early)

    def decode(self) -> None:
        """The decode targets and the dense baselines."""
        self.dense_decode()
        for words, rope, early in (
            ("", self.rope, False),
            (", fp16 tables", self.half_rope, False),
            (", fp16 tables, early", self.half_rope, True),
        ):
            for name, run in (
                ("full selection", lambda x, r, e: self.full_step(x, x.index, r, e)),
                ("full selection, fp8 index", lambda x, r, e: self.full_step(x, x.index_fp8, r, e)),
                ("plan cached", lambda x, r, e: self.attend(x, x.plan, r, e)),
            ):
                ms = graph_ms(
                    lambda x, run=run, rope=rope, early=early: run(x, rope, early), self.layers
                )
                self.show(f"decode, {name}{words}", ms)

    def dense_decode(self) -> None:
        """SDPA over all keys, in a graph."""
        shape = (1, 8, self.context, 128)
        k, v = (torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        q = self.layers[0].q.view(1, 32, 1, 128)
        for name, backend in DENSE.items():
            try:
                with sdpa_kernel(backend):
                    ms = graph_ms(lambda _: dense(q, k, v, enable_gqa=True), self.layers)
                self.show(f"decode, SDPA {name}", ms)
            except RuntimeError as error:
                print(f"SDPA {name}: {error}"[:200])

    def decode_parts(self) -> None:
        """Each kernel of a decode step alone, with the bandwidth it reaches."""
        layers, rope = self.layers, self.rope
        scores = [score_pages(x.q, x.index, self.start, rope, DISTANCE, 1, 1, 256) for x in layers]
        pages = [select_blocks(s, CANDIDATE_PAGES) for s in scores]
        places = {id(x): i for i, x in enumerate(layers)}
        blocks = [
            score_blocks(x.q, x.kv, p, rope, DISTANCE, 1, 16, 1)
            for x, p in zip(layers, pages, strict=True)
        ]
        index_gb = self.context // 64 * 8 * 512 / 1e9
        for name, run, gigabytes in (
            ("page_index tail", lambda x: update_page_index_(
                x.index, x.kv.k_pages, x.kv.page_table, self.length, 1), 0),
            ("score_pages bf16", lambda x: score_pages(
                x.q, x.index, self.start, rope, DISTANCE, 1, 1, 256), index_gb),
            ("score_pages fp8", lambda x: score_pages(
                x.q, x.index_fp8, self.start, rope, DISTANCE, 1, 1, 256), index_gb / 2),
            ("select pages", lambda x: select_blocks(scores[places[id(x)]], CANDIDATE_PAGES), 0),
            ("score_blocks", lambda x: score_blocks(
                x.q, x.kv, pages[places[id(x)]], rope, DISTANCE, 1, 16, 1),
                CANDIDATE_PAGES * 8 * 16384 / 1e9),
            ("select blocks", lambda x: select_blocks(
                blocks[places[id(x)]], SELECTED_BLOCKS, pages[places[id(x)]]), 0),
            ("select_step_", lambda x: step_impl.launch(
                x.q, x.kv, x.index, self.start, self.length, rope, ONE_QUERY, self.counters), 0),
            ("sparse_decode without counters", lambda x: decode_impl.launch(
                x.q, x.kv, x.plan, rope, self.length, SCALE), 3392 * 8 * 512 / 1e9),
            ("sparse_decode", lambda x: decode_impl.launch(
                x.q, x.kv, x.plan, rope, self.length, SCALE, self.counters),
                3392 * 8 * 512 / 1e9),
        ):  # fmt: skip
            ms = graph_ms(run, layers)
            self.show(f"decode part: {name}", ms, f"{gigabytes / ms * 1e3:6.0f} GB/s")

    def prefill_inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries of the last chunk and the window starts of their blocks."""
        q = torch.randn(CHUNK, 32, 128, dtype=torch.bfloat16, device=DEVICE)
        blocks = torch.arange(CHUNK // 64, device=DEVICE) * 64 + self.context - CHUNK
        return q, ((blocks - 1024) // 64 * 64).int()

    def prefill(self) -> None:
        """A chunk of 8,192 queries at the end of the context: parts, whole, baselines."""
        layer, rope = self.layers[0], self.half_rope
        q, starts = self.prefill_inputs()
        kv, index = layer.kv, layer.index
        run = {
            "page_index": lambda: update_page_index_(
                index, kv.k_pages, kv.page_table, self.length, CHUNK),
            "score_pages": lambda: score_pages(q, index, starts, rope, DISTANCE, 64, 4, 256),
        }  # fmt: skip
        scores = run["score_pages"]()
        run["select pages"] = lambda: select_blocks(scores, CANDIDATE_PAGES)
        pages = run["select pages"]()
        run["score_blocks"] = lambda: score_blocks(q, kv, pages, rope, DISTANCE, 64, 16, 4)
        small = run["score_blocks"]()
        run["select blocks"] = lambda: select_blocks(small, SELECTED_BLOCKS, pages)
        plan = SparsePlan(run["select blocks"](), starts, 64, 16, 256, LOCAL_TOKENS)
        for name, tables_ in (("fp16 tables", rope), ("fp32 tables", self.rope)):
            run[f"sparse_prefill {name}"] = lambda tables_=tables_: sparse_prefill(
                q, kv, plan, tables_, self.length, SCALE)  # fmt: skip
        flops = CHUNK * 32 * 3360 * 4 * 128
        for name, part in run.items():
            ms = median_ms(part)
            note = f"{flops / ms / 1e9:5.0f} TFLOP/s" if "sparse" in name else ""
            self.show(f"prefill part: {name}", ms, note)
        whole = median_ms(lambda: self.prefill_chunk(layer, q, starts))
        self.show("prefill chunk 8,192, all", whole)

    def prefill_chunk(self, layer: Layer, q: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Index update, selection and attention of one chunk."""
        chosen = select_step_(
            q, layer.kv, layer.index, starts, self.length, self.half_rope, QUERY_BLOCKS,
            counters=self.counters,
        )  # fmt: skip
        plan = SparsePlan(chosen, starts, 64, 16, 256, LOCAL_TOKENS)
        return sparse_prefill(q, layer.kv, plan, self.half_rope, self.length, SCALE)[0]

    def dense_prefill(self) -> None:
        """SDPA of the chunk; keys less half a chunk stand for the causal mask's average."""
        keys = self.context - CHUNK // 2
        k, v = (torch.randn(1, 8, keys, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        q = torch.randn(1, 32, CHUNK, 128, dtype=torch.bfloat16, device=DEVICE)
        for name, backend in DENSE.items():
            try:
                with sdpa_kernel(backend):
                    ms = median_ms(lambda: dense(q, k, v, enable_gqa=True), 3)
                self.show(f"{PREFILL_CHUNK}, SDPA {name}", ms)
            except RuntimeError as error:
                print(f"SDPA {name}: {error}"[:200])

    def votes(self) -> None:
        """One pass over all keys for a few query tokens."""
        gigabytes = self.context * 8 * 256 / 1e9
        for tokens in (1, 4, 16, 64):
            q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
            ms = graph_ms(
                lambda x, q=q: vote(q, x.kv, self.length, self.rope, DISTANCE, SCALE), self.layers
            )
            self.show(f"vote, {tokens} tokens", ms, f"{gigabytes / ms * 1e3:6.0f} GB/s")


def sections(bench: Bench) -> list[tuple[str, Callable[[], None]]]:
    """What every run times."""
    return [
        ("decode", bench.decode),
        ("parts", bench.decode_parts),
        ("dense", bench.dense_prefill),
        ("prefill", bench.prefill),
        ("vote", bench.votes),
    ]
