"""The sections of `benchmarks/kernels.py` with keys and values in fp8, beside those in bf16."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hipcli.engine.benchmarks.kernel_cases import (
    CANDIDATE_PAGES,
    CHUNK,
    DISTANCE,
    LOCAL_TOKENS,
    NUM_LAYERS,
    SELECTED_BLOCKS,
    Bench,
    Layer,
    graph_ms,
    median_ms,
)
from hipcli.engine.benchmarks.kernel_checks import DEVICE, SCALE, paged_fp8, random_plan
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PageIndex, SparsePlan
from hipcli.kernels.vote import vote


class Fp8Bench:
    """Layers of one context length, made when the first section needs them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._layers: list[Layer] = []

    @property
    def layers(self) -> list[Layer]:
        """As many as `Bench` has, of the same shapes."""
        while len(self._layers) < NUM_LAYERS:
            kv = paged_fp8(self.bench.context)
            indices: list[PageIndex] = []
            for dtype in (torch.bfloat16, torch.float8_e4m3fn):
                shape = (8, self.bench.context // 64, 128)
                index = new_page_index("bounds", shape, 64, dtype=dtype, device=DEVICE)
                update_page_index_(
                    index, kv.k_pages, kv.page_table, self.bench.length, self.bench.context,
                    k_scales=kv.k_scales,
                )  # fmt: skip
                indices.append(index)
            q = torch.randn(1, 32, 128, dtype=torch.bfloat16, device=DEVICE)
            plan = random_plan(1, 1, self.bench.context - 1)
            self._layers.append(Layer(kv, indices[0], indices[1], q, plan))
        return self._layers

    def decode(self) -> None:
        """A decode step, and its kernels that read keys or values."""
        bench, rope = self.bench, self.bench.half_rope
        for words, run in (
            ("full selection", lambda x: bench.full_step(x, x.index, rope, True)),
            ("full selection, fp8 index", lambda x: bench.full_step(x, x.index_fp8, rope, True)),
            ("plan cached", lambda x: bench.attend(x, x.plan, rope, True)),
        ):
            ms = graph_ms(run, self.layers)
            bench.show(f"decode, {words}, fp16 tables, early, fp8 KV", ms)
        starts = bench.start
        pages = {}
        for layer in self.layers:
            scores = score_pages(layer.q, layer.index, starts, rope, DISTANCE, 1, 1, 256)
            pages[id(layer)] = select_blocks(scores, CANDIDATE_PAGES)
        k, v = (torch.randn(1, 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        for name, run, gigabytes in (
            ("quantise a token", lambda x: quantise_pages_(x.kv, k, v, bench.length), 0),
            ("score_blocks", lambda x: score_blocks(
                x.q, x.kv, pages[id(x)], rope, DISTANCE, 1, 16, 1),
                CANDIDATE_PAGES * 8 * 8192 / 1e9),
            ("sparse_decode", lambda x: decode_impl.launch(
                x.q, x.kv, x.plan, rope, bench.length, SCALE, bench.counters),
                3392 * 8 * 256 / 1e9),
        ):  # fmt: skip
            ms = graph_ms(run, self.layers)
            bench.show(f"decode part: {name}, fp8 KV", ms, f"{gigabytes / ms * 1e3:6.0f} GB/s")

    def prefill(self) -> None:
        """A chunk of 8,192 queries at the end of the context."""
        bench, layer, rope = self.bench, self.layers[0], self.bench.half_rope
        q, starts = bench.prefill_inputs()
        kv = layer.kv
        k, v = (torch.randn(CHUNK, 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        scores = score_pages(q, layer.index, starts, rope, DISTANCE, 64, 4, 256)
        pages = select_blocks(scores, CANDIDATE_PAGES)
        small = score_blocks(q, kv, pages, rope, DISTANCE, 64, 16, 4)
        chosen = select_blocks(small, SELECTED_BLOCKS, pages)
        plan = SparsePlan(chosen, starts, 64, 16, 256, LOCAL_TOKENS)
        flops = CHUNK * 32 * 3360 * 4 * 128
        for name, run in (
            ("quantise", lambda: quantise_pages_(kv, k, v, bench.length)),
            ("page_index", lambda: update_page_index_(
                layer.index, kv.k_pages, kv.page_table, bench.length, CHUNK, k_scales=kv.k_scales)),
            ("score_blocks", lambda: score_blocks(q, kv, pages, rope, DISTANCE, 64, 16, 4)),
            ("sparse_prefill fp16 tables", lambda: sparse_prefill(
                q, kv, plan, rope, bench.length, SCALE)),
        ):  # fmt: skip
            ms = median_ms(run)
            note = f"{flops / ms / 1e9:5.0f} TFLOP/s" if "sparse" in name else ""
            bench.show(f"prefill part: {name}, fp8 KV", ms, note)

        whole = median_ms(lambda: bench.prefill_chunk(layer, q, starts))
        bench.show("prefill chunk 8,192, all, fp8 KV", whole)

    def votes(self) -> None:
        """One pass over all keys for a few query tokens."""
        bench = self.bench
        gigabytes = bench.context * 8 * 128 / 1e9
        for tokens in (1, 4, 16, 64):
            q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
            ms = graph_ms(
                lambda x, q=q: vote(q, x.kv, bench.length, bench.rope, DISTANCE, SCALE),
                self.layers,
            )
            bench.show(f"vote, {tokens} tokens, fp8 KV", ms, f"{gigabytes / ms * 1e3:6.0f} GB/s")


def fp8_sections(bench: Bench) -> list[tuple[str, Callable[[], None]]]:
    """What every run times beside `kernel_cases.sections`; `--only fp8` runs these alone."""
    fp8 = Fp8Bench(bench)
    return [
        ("fp8 decode", fp8.decode),
        ("fp8 prefill", fp8.prefill),
        ("fp8 vote", fp8.votes),
    ]
