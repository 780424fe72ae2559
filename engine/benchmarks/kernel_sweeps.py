"""Tile sizes that `benchmarks/kernels.py --sweep` times beside the defaults."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from hipcli.engine.benchmarks.kernel_cases import (
    CANDIDATE_PAGES,
    DISTANCE,
    LOCAL_TOKENS,
    ONE_QUERY,
    SELECTED_BLOCKS,
    Bench,
    graph_ms,
    median_ms,
)
from hipcli.engine.benchmarks.kernel_checks import DEVICE, SCALE
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_blocks import triton_impl as blocks_impl
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.score_pages import triton_impl as pages_impl
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_blocks import triton_impl as select_impl
from hipcli.kernels.select_step import triton_impl as step_impl
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import triton_impl as prefill_impl
from hipcli.kernels.types import SparsePlan
from hipcli.kernels.vote import triton_impl as vote_impl


def sweep(bench: Bench, name: str, tiles: list, run: Callable, in_graph: bool) -> None:
    """Time every tile; the ones that fail say why and the rest go on."""
    for tile in tiles:
        words = re.sub(r"Tile|Variant|[a-z_]+=", "", str(tile))
        try:
            if in_graph:
                ms = graph_ms(lambda x, tile=tile: run(x, tile), bench.layers)
            else:
                ms = median_ms(lambda tile=tile: run(tile), 10)
            bench.show(f"sweep {name} {words}", ms)
        except Exception as error:  # a tile too large for the device is a result too
            print(
                f"{bench.context:>9,}  sweep {name} {words}: {type(error).__name__}: {error}"[:160]
            )


def sweep_decode_pages(bench: Bench) -> None:
    """Ways to score and select pages for one query."""
    rope = bench.rope
    for words, tiles in (
        ("bf16", (
            (64, 64, 4, 2), (64, 128, 4, 2), (64, 256, 4, 3), (64, 512, 4, 3), (64, 512, 4, 4),
            (32, 256, 4, 4), (32, 512, 4, 5), (32, 128, 4, 4), (128, 512, 4, 3))),
        ("fp8", (
            (64, 64, 4, 2), (64, 128, 4, 3), (64, 256, 4, 3), (64, 512, 4, 4), (64, 512, 4, 6),
            (128, 256, 4, 3), (128, 512, 4, 4), (128, 512, 8, 3), (32, 256, 4, 5))),
    ):  # fmt: skip
        sweep(
            bench,
            f"score_pages decode {words}",
            [pages_impl.Tile(p, 16, n, w, s) for p, n, w, s in tiles],
            lambda x, tile, words=words: pages_impl.launch(
                x.q, x.index if words == "bf16" else x.index_fp8, bench.start, rope, DISTANCE,
                (1, 1, 256), tile),
            True,
        )  # fmt: skip
    scores = {
        id(x): score_pages(x.q, x.index, bench.start, rope, DISTANCE, 1, 1, 256)
        for x in bench.layers
    }
    sweep(
        bench,
        "select pages (chunk, warps)",
        [(1024, 2), (1024, 4), (2048, 2), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (8192, 8)],
        lambda x, tile: select_impl.launch(scores[id(x)], CANDIDATE_PAGES, None, *tile),
        True,
    )


def sweep_decode(bench: Bench) -> None:
    """Tiles of the decode kernels that read keys."""
    rope, length, counters = bench.rope, bench.length, bench.counters
    pages = {
        id(x): select_blocks(
            score_pages(x.q, x.index, bench.start, rope, DISTANCE, 1, 1, 256), CANDIDATE_PAGES
        )
        for x in bench.layers
    }
    for words, selected in (("", 0), (" and select", SELECTED_BLOCKS)):
        sweep(
            bench,
            f"score_blocks{words} decode",
            [blocks_impl.Tile(t, p, w, s) for t, p, w, s in (
                (64, 1, 4, 2), (64, 2, 4, 2), (64, 4, 4, 3), (64, 4, 4, 4), (64, 8, 4, 3),
                (64, 8, 4, 4), (32, 4, 4, 5), (32, 8, 4, 6), (64, 4, 2, 3))],
            lambda x, tile, selected=selected: blocks_impl.launch(
                x.q, x.kv, pages[id(x)], rope, DISTANCE, (1, 16, 1), tile, selected, counters),
            True,
        )  # fmt: skip
    for words, tables, early in (
        ("fp32 tables", rope, False), ("fp16 tables", bench.half_rope, False),
        ("fp16 tables, early", bench.half_rope, True),
    ):  # fmt: skip
        sweep(
            bench,
            f"sparse_decode {words}",
            [decode_impl.Tile(*sizes) for sizes in (
                (128, 28, 4, 1), (128, 28, 4, 1, 200), (128, 28, 8, 1, 128), (64, 55, 4, 1),
                (64, 55, 4, 1, 128), (64, 55, 8, 1, 128), (64, 28, 4, 2), (64, 55, 4, 2),
                (32, 110, 4, 1, 96), (256, 14, 8, 1))],
            lambda x, tile, tables=tables, early=early: decode_impl.launch(
                x.q, x.kv, x.plan, tables, length, SCALE, counters, tile, early),
            True,
        )  # fmt: skip


def sweep_steps(bench: Bench) -> None:
    """Whole steps of selection, with launches before the predecessor's end and without."""
    tiles = (None, blocks_impl.Tile(64, 8, 4, 4))
    sweep(
        bench,
        "select_step_",
        [step_impl.Variant(None, blocks, chunk, warps, early)
         for blocks in tiles for chunk, warps in ((2048, None), (2048, 2), (4096, 4))
         for early in (False, True)],
        lambda x, variant: step_impl.launch(
            x.q, x.kv, x.index, bench.start, bench.length, bench.half_rope, ONE_QUERY,
            bench.counters, variant),
        True,
    )  # fmt: skip


def sweep_prefill(bench: Bench) -> None:
    """Tiles of the prefill kernels."""
    layer, rope = bench.layers[0], bench.half_rope
    q, starts = bench.prefill_inputs()
    scores = score_pages(q, layer.index, starts, rope, DISTANCE, 64, 4, 256)
    pages = select_blocks(scores, CANDIDATE_PAGES)
    small = score_blocks(q, layer.kv, pages, rope, DISTANCE, 64, 16, 4)
    chosen = select_blocks(small, SELECTED_BLOCKS, pages)
    plan = SparsePlan(chosen, starts, 64, 16, 256, LOCAL_TOKENS)
    sweep(
        bench,
        "sparse_prefill",
        [prefill_impl.Tile(*sizes) for sizes in (
            (256, 64, 8, 2), (256, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 2))],
        lambda tile: prefill_impl.launch(
            q, layer.kv, plan, rope, bench.length, SCALE, tile),
        False,
    )  # fmt: skip
    sweep(
        bench,
        "score_pages prefill",
        [pages_impl.Tile(p, r, n, w, s) for p, r, n, w, s in (
            (128, 128, 4096, 8, 2), (128, 128, 2048, 8, 2), (128, 128, 8192, 8, 2),
            (128, 128, 1024, 8, 2), (64, 128, 4096, 8, 2), (128, 64, 2048, 8, 3))],
        lambda tile: pages_impl.launch(
            q, layer.index, starts, rope, DISTANCE, (64, 4, 256), tile),
        False,
    )  # fmt: skip
    sweep(
        bench,
        "select pages prefill (chunk, warps)",
        [(1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (16384, 16), (16384, 32)],
        lambda tile: select_impl.launch(scores, CANDIDATE_PAGES, None, *tile),
        False,
    )
    for words, selected in (("", 0), (" and select", SELECTED_BLOCKS)):
        sweep(
            bench,
            f"score_blocks{words} prefill",
            [blocks_impl.Tile(t, n, w, s) for t, n, w, s in (
                (128, 64, 4, 3), (128, 128, 4, 3), (128, 256, 4, 3), (128, 256, 8, 3),
                (64, 256, 4, 3), (64, 256, 4, 4))],
            lambda tile, selected=selected: blocks_impl.launch(
                q, layer.kv, pages, rope, DISTANCE, (64, 16, 4), tile, selected,
                bench.counters),
            False,
        )  # fmt: skip


def sweep_vote(bench: Bench) -> None:
    """Tiles of the vote for 16 and 64 query tokens."""
    for tokens, tiles in (
        (16, (
            (64, 128, 33, 4, 3), (64, 128, 66, 4, 3), (64, 64, 33, 4, 4), (64, 64, 66, 4, 3),
            (64, 128, 33, 4, 3, 168))),
        (64, (
            (256, 64, 33, 8, 2, 128), (256, 64, 33, 8, 3, 128), (256, 64, 66, 8, 2, 128),
            (256, 64, 33, 8, 3), (256, 128, 33, 8, 2), (256, 128, 17, 8, 3),
            (128, 64, 33, 4, 3), (128, 64, 33, 4, 4), (128, 128, 17, 8, 3))),
    ):  # fmt: skip
        q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
        sweep(
            bench,
            f"vote {tokens}",
            [vote_impl.Tile(*sizes) for sizes in tiles],
            lambda x, tile, q=q: vote_impl.launch(
                q, x.kv, bench.length, bench.rope, DISTANCE, SCALE, tile),
            True,
        )  # fmt: skip


def sweeps(bench: Bench) -> list[tuple[str, Callable[[], None]]]:
    """What --sweep adds."""
    return [
        ("sweep decode pages", lambda: sweep_decode_pages(bench)),
        ("sweep decode", lambda: sweep_decode(bench)),
        ("sweep steps", lambda: sweep_steps(bench)),
        ("sweep prefill", lambda: sweep_prefill(bench)),
        ("sweep vote", lambda: sweep_vote(bench)),
    ]
