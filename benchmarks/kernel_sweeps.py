"""Tile sizes that `benchmarks/kernels.py --sweep` times beside the defaults."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from kernel_cases import (
    CANDIDATE_PAGES,
    DISTANCE,
    LOCAL_TOKENS,
    SELECTED_BLOCKS,
    Bench,
    graph_ms,
    median_ms,
)
from kernel_checks import DEVICE, SCALE

from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_blocks import triton_impl as blocks_impl
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.score_pages import triton_impl as pages_impl
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_blocks import triton_impl as select_impl
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import triton_impl as prefill_impl
from hipcli.kernels.types import SparsePlan
from hipcli.kernels.vote import triton_impl as vote_impl


def sweep(bench: Bench, name: str, tiles: list, run: Callable, in_graph: bool) -> None:
    """Time every tile; the ones that fail say why and the rest go on."""
    for tile in tiles:
        words = str(tile).removeprefix("Tile")
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


def sweep_decode(bench: Bench) -> None:
    """Tiles of the decode kernels."""
    rope, length = bench.rope, bench.length
    sweep(
    bench,
        "score_pages decode",
        [pages_impl.Tile(p, 16, p * n, w, s) for p, n, w, s in (
            (64, 1, 4, 1), (64, 1, 4, 2), (128, 1, 4, 1), (128, 1, 8, 1), (32, 1, 4, 1),
            (64, 2, 4, 3), (64, 4, 4, 3), (64, 4, 4, 4), (128, 2, 4, 3), (128, 4, 8, 3))],
        lambda x, tile: pages_impl.launch(
            x.q, x.index, bench.start, rope, DISTANCE, (1, 1, 256), tile),
        True,
    )  # fmt: skip
    scores = {
        id(x): score_pages(x.q, x.index, bench.start, rope, DISTANCE, 1, 1, 256)
        for x in bench.layers
    }
    sweep(
        bench,
        "select pages chunk",
        [1024, 2048, 4096, 8192, 16384],
        lambda x, chunk: select_impl.launch(scores[id(x)], CANDIDATE_PAGES, None, chunk),
        True,
    )
    pages = {key: select_blocks(s, CANDIDATE_PAGES) for key, s in scores.items()}
    sweep(
    bench,
        "score_blocks decode",
        [blocks_impl.Tile(t, p, w, s) for t, p, w, s in (
            (64, 1, 4, 1), (64, 1, 4, 2), (128, 2, 4, 1), (64, 2, 4, 2), (64, 4, 4, 3),
            (128, 4, 4, 3))],
        lambda x, tile: blocks_impl.launch(
            x.q, x.kv, pages[id(x)], rope, DISTANCE, (1, 16, 1), tile),
        True,
    )  # fmt: skip
    sweep(
    bench,
        "sparse_decode",
        [decode_impl.Tile(k, n, w, s) for k, n, w, s in (
            (64, 56, 4, 1), (64, 33, 4, 1), (64, 16, 4, 1), (64, 16, 4, 3), (128, 28, 4, 1),
            (128, 28, 8, 1), (32, 66, 4, 1), (32, 110, 4, 1), (64, 28, 4, 2))],
        lambda x, tile: decode_impl.launch(x.q, x.kv, x.plan, rope, length, SCALE, tile),
        True,
    )  # fmt: skip


def sweep_prefill(bench: Bench) -> None:
    """Tiles of the prefill kernels and of the vote."""
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
            (256, 64, 8, 2), (256, 64, 8, 3), (256, 32, 8, 3), (256, 32, 8, 4),
            (256, 64, 16, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2),
            (128, 64, 4, 2), (128, 32, 4, 3), (64, 64, 4, 2))],
        lambda tile: prefill_impl.launch(
            q, layer.kv, plan, rope, bench.length, SCALE, tile),
        False,
    )  # fmt: skip
    sweep(
    bench,
        "score_pages prefill",
        [pages_impl.Tile(p, r, n, w, s) for p, r, n, w, s in (
            (128, 128, 4096, 8, 2), (128, 128, 1024, 8, 2), (64, 128, 4096, 4, 3),
            (64, 128, 4096, 8, 3), (128, 64, 4096, 4, 2), (128, 64, 4096, 8, 2),
            (64, 256, 4096, 8, 2), (128, 256, 4096, 8, 1))],
        lambda tile: pages_impl.launch(
            q, layer.index, starts, rope, DISTANCE, (64, 4, 256), tile),
        False,
    )  # fmt: skip
    sweep(
    bench,
        "score_blocks prefill",
        [blocks_impl.Tile(t, n, w, s) for (t, w), n, s in product(
            ((128, 4), (128, 8), (64, 4)), (64, 256), (2, 3, 4))],
        lambda tile: blocks_impl.launch(
            q, layer.kv, pages, rope, DISTANCE, (64, 16, 4), tile),
        False,
    )  # fmt: skip


def sweep_vote(bench: Bench) -> None:
    """Tiles of the vote for 16 query tokens."""
    q = torch.randn(16, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    sweep(
    bench,
        "vote 16",
        [vote_impl.Tile(r, k, n, w, s) for r, k, n, w, s in (
            (64, 128, 33, 4, 3), (64, 128, 66, 4, 3), (64, 128, 33, 4, 4), (64, 64, 66, 4, 4),
            (64, 64, 99, 4, 3), (64, 256, 33, 8, 2), (64, 256, 33, 4, 2), (64, 128, 33, 8, 3))],
        lambda x, tile: vote_impl.launch(
            q, x.kv, bench.length, bench.rope, DISTANCE, SCALE, tile),
        True,
    )  # fmt: skip


def sweeps(bench: Bench) -> list[tuple[str, Callable[[], None]]]:
    """What --sweep adds."""
    return [
        ("sweep decode", lambda: sweep_decode(bench)),
        ("sweep prefill", lambda: sweep_prefill(bench)),
        ("sweep vote", lambda: sweep_vote(bench)),
    ]
