"""Compiles every kernel without a GPU, through the real launchers. Run as a child process.

    python -m tests.kernels.offline 80,90,100 [name ...]

The launchers are called with tensors of the meta device under a stand-in driver that names an
architecture; every launch then compiles and stops. So what is compiled is exactly what a GPU
would get: shapes, strides, alignment, tile sizes. Prints one JSON object a kernel.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hipcli.kernels.fetch_pages import fetch_pages_, fetch_values_
from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.plan_fetch import plan_fetch_, plan_values_
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.rope import rope as apply_rope
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import (
    QUARTERS,
    HostPages,
    PagedKV,
    RopeTables,
    SelectionSizes,
    SlotTables,
    SparsePlan,
)
from hipcli.kernels.vote import vote

META = torch.device("meta")
PAGES = 16384
FP8 = torch.float8_e4m3fn


class StandInDriver:
    """Answers what a launch asks before it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        # Launches keep their compiled kernels, and the architecture, per device number.
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device=META)


def integers(*shape: int) -> torch.Tensor:
    """An int32 tensor without memory."""
    return empty(*shape, dtype=torch.int32)


def fp8_pages(head_dim: int) -> PagedKV:
    """Pages of the Llama-3.1-8B shape in fp8, each followed by its scales as in a store."""
    codes = 2 * 8 * 64 * head_dim
    records = empty(PAGES, codes + 128, dtype=torch.uint8)
    pages = records[:, :codes].view(FP8).unflatten(1, (2, 8, 64, head_dim))
    scales = records.view(torch.float32)[:, codes // 4 : codes // 4 + 16].unflatten(1, (2, 8))
    return PagedKV(pages[:, 0], pages[:, 1], integers(PAGES), scales[:, 0], scales[:, 1])


def inputs(num_tokens: int, head_dim: int = 128, fp8: bool = False, own: bool = False):
    """Queries, pages, tables and length of the Llama-3.1-8B shape.

    With `own` each KV head has a page table of its own.
    """
    pages = empty(PAGES, 2, 8, 64, head_dim)
    kv = PagedKV(pages[:, 0], pages[:, 1], integers(PAGES))
    kv = fp8_pages(head_dim) if fp8 else kv
    kv = replace(kv, page_table=integers(8, PAGES)) if own else kv
    tables = empty(8192, head_dim, dtype=torch.float32)
    return empty(num_tokens, 32, head_dim), kv, RopeTables(tables, tables), integers(1)


def plan(num_tokens: int, block_size_q: int) -> SparsePlan:
    """256 sinks, 2,048 selected tokens in blocks of 16, a window of about 1,024."""
    blocks = num_tokens // block_size_q
    return SparsePlan(
        integers(blocks, 8, 128), integers(blocks), block_size_q, 16, 256, 256 + 2048 + 1024 + 192
    )


def run_rope() -> None:
    """One launch."""
    q, _, tables, _ = inputs(64)
    apply_rope(q, integers(64), tables, backend="triton")


def run_page_index(dtype: torch.dtype = torch.bfloat16, fp8: bool = False) -> None:
    """One launch."""
    _, kv, _, length = inputs(1, fp8=fp8)
    index = new_page_index("bounds", (8, PAGES, 128), 64, dtype=dtype, device=META)
    update_page_index_(
        index, kv.k_pages, kv.page_table, length, 8192, k_scales=kv.k_scales, backend="triton"
    )


def run_quantise_pages(own: bool = False) -> None:
    """One launch."""
    _, kv, _, length = inputs(1, fp8=True, own=own)
    k, v = (empty(8192, 8, 128) for _ in range(2))
    quantise_pages_(kv, k, v, length, backend="triton")


def run_score_pages(num_tokens: int, dtype: torch.dtype = torch.bfloat16, stride: int = 4) -> None:
    """One launch."""
    q, _, tables, _ = inputs(num_tokens)
    size, stride = (64, stride) if num_tokens > 1 else (1, 1)
    index = new_page_index("bounds", (8, PAGES, 128), 64, dtype=dtype, device=META)
    starts = integers(num_tokens // size)
    score_pages(q, index, starts, tables, 1024, size, stride, 256, backend="triton")


def run_score_blocks(num_tokens: int) -> None:
    """One launch."""
    q, kv, tables, _ = inputs(num_tokens)
    size, stride = (64, 4) if num_tokens > 1 else (1, 1)
    candidates = integers(num_tokens // size, 8, 256)
    score_blocks(q, kv, candidates, tables, 1024, size, 16, stride, backend="triton")


def run_select(n: int, candidates: int) -> None:
    """One launch, two for long rows."""
    scores = empty(1, 8, n, dtype=torch.float32)
    listed = integers(1, 8, candidates) if candidates else None
    select_blocks(scores, 128, listed, backend="triton")


def run_select_step(
    num_tokens: int, dtype: torch.dtype = torch.bfloat16, fp8: bool = False, own: bool = False
) -> None:
    """Three launches and four for one query, one more for many."""
    q, kv, tables, length = inputs(num_tokens, fp8=fp8, own=own)
    size, stride = (64, 4) if num_tokens > 1 else (1, 1)
    index = new_page_index("bounds", (8, PAGES, 128), 64, dtype=dtype, device=META)
    starts = integers(num_tokens // size)
    sizes = SelectionSizes(1024, size, 16, stride, 256, candidate_pages=256, num_selected=128)
    select_step_(q, kv, index, starts, length, tables, sizes, backend="triton")


def run_sparse_prefill(head_dim: int = 128, fp8: bool = False, own: bool = False) -> None:
    """Two launches."""
    q, kv, tables, length = inputs(8192, head_dim, fp8, own)
    sparse_prefill(q, kv, plan(8192, 64), tables, length, 0.1, backend="triton")


def run_sparse_decode(fp8: bool = False, own: bool = False) -> None:
    """One launch."""
    q, kv, tables, length = inputs(1, fp8=fp8, own=own)
    sparse_decode(q, kv, plan(1, 1), tables, length, 0.1, backend="triton")


def run_shard_attention(num_tokens: int, fp8: bool = False) -> None:
    """Two launches, and one that joins where keys are split."""
    q, kv, tables, length = inputs(num_tokens, fp8=fp8)
    size = 64 if num_tokens > 1 else 1
    shard_attention(q, kv, plan(num_tokens, size), tables, length, 0.1, backend="triton")


def run_merge() -> None:
    """One launch."""
    merge_partials(empty(64, 1, 32, 128), empty(64, 1, 32, dtype=torch.float32), backend="triton")


def run_vote(fp8: bool = False, own: bool = False) -> None:
    """One launch."""
    q, kv, tables, length = inputs(16, fp8=fp8, own=own)
    vote(q, kv, length, tables, 1024, 0.1, backend="triton")


def run_fetch_pages(fp8: bool, own: bool) -> None:
    """Three launches: whole pages, keys alone, values alone."""
    _, kv, _, _ = inputs(1, fp8=fp8, own=own)
    host = HostPages(empty(64, dtype=torch.int64), 256)
    pages, slots = integers(8, 256), integers(8, 256)
    for keys_only in (False, True):
        fetch_pages_(kv, host, pages, slots, keys_only=keys_only, backend="triton")
    fetch_values_(kv, host, pages, slots, backend="triton")


def run_plan_fetch() -> None:
    """Three launches."""
    tables = SlotTables(
        integers(8, PAGES), integers(8, 960), integers(8, 960), integers(1), integers(2),
        empty(3, dtype=torch.int64), empty(8, 960, QUARTERS, dtype=torch.uint8),
    )  # fmt: skip
    for keys_only in (True, False):
        plan_fetch_(tables, integers(8, 256), keys_only=keys_only, backend="triton")
    plan_values_(tables, integers(8, 128), backend="triton")


CASES: dict[str, Callable[[], None]] = {
    "rope": run_rope,
    "page_index": run_page_index,
    "score_pages_prefill": lambda: run_score_pages(8192),
    "score_pages_every_query": lambda: run_score_pages(8192, stride=1),
    "score_pages_decode": lambda: run_score_pages(1),
    "score_blocks_prefill": lambda: run_score_blocks(8192),
    "score_blocks_decode": lambda: run_score_blocks(1),
    "select_blocks_row": lambda: run_select(PAGES, 0),
    "select_blocks_candidates": lambda: run_select(1024, 256),
    "select_step_decode": lambda: run_select_step(1),
    "select_step_fp8": lambda: run_select_step(1, torch.float8_e4m3fn),
    "select_step_prefill": lambda: run_select_step(8192),
    "sparse_prefill": run_sparse_prefill,
    "sparse_prefill_80": lambda: run_sparse_prefill(80),
    "sparse_decode": run_sparse_decode,
    "shard_attention": lambda: run_shard_attention(8192),
    "shard_attention_decode": lambda: run_shard_attention(1),
    "merge_partials": run_merge,
    "vote": run_vote,
    "fp8 quantise_pages": run_quantise_pages,
    "fp8 page_index": lambda: run_page_index(fp8=True),
    "fp8 select_step_decode": lambda: run_select_step(1, FP8, fp8=True),
    "fp8 sparse_prefill": lambda: run_sparse_prefill(fp8=True),
    "fp8 sparse_decode": lambda: run_sparse_decode(fp8=True),
    "fp8 shard_attention": lambda: run_shard_attention(8192, fp8=True),
    "fp8 vote": lambda: run_vote(fp8=True),
    "fetch_pages": lambda: run_fetch_pages(fp8=False, own=False),
    "fp8 fetch_pages": lambda: run_fetch_pages(fp8=True, own=True),
    "plan_fetch": run_plan_fetch,
    "own tables quantise_pages": lambda: run_quantise_pages(own=True),
    "own tables select_step_decode": lambda: run_select_step(1, fp8=True, own=True),
    "own tables select_step_prefill": lambda: run_select_step(8192, fp8=True, own=True),
    "own tables sparse_prefill": lambda: run_sparse_prefill(fp8=True, own=True),
    "own tables sparse_decode": lambda: run_sparse_decode(fp8=True, own=True),
    "own tables vote": lambda: run_vote(fp8=True, own=True),
}


def compile_case(run: Callable[[], None], capability: int) -> list:
    """Call a launcher whose launches compile and stop; what it compiled, in order."""
    driver.set_active(StandInDriver(capability))
    compiled = []
    original = JITFunction.run

    def compile_only(self, *args, grid, warmup, **kwargs):
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append((self.fn.__name__, kernel))
        return kernel

    JITFunction.run = compile_only
    try:
        run()
    finally:
        JITFunction.run = original
    return compiled


def describe(case: str, name: str, kernel) -> dict[str, object]:
    """What the tests look at."""
    ptx = kernel.asm["ptx"]
    instructions = ("wgmma.mma_async", "mma.sync", "tcgen05.mma", "ld.global.v4", "st.global.v4")
    counts = {word: len(re.findall(re.escape(word), ptx)) for word in instructions}
    return {
        "case": case,
        "kernel": name,
        "capability": kernel.metadata.target.arch,
        "shared_bytes": kernel.metadata.shared,
        "num_warps": kernel.metadata.num_warps,
        "fp8_products": len(re.findall(r"mma\S*\.e4m3\.e4m3", ptx)),
        "async_copies": len(re.findall(r"cp\.async\.c[ag]", ptx)),
        **counts,
    }


def main() -> None:
    """Compile the named cases, or all, for every capability."""
    for capability in map(int, sys.argv[1].split(",")):
        for case in sys.argv[2:] or list(CASES):
            for name, kernel in compile_case(CASES[case], capability):
                print(json.dumps(describe(case, name, kernel)), flush=True)


if __name__ == "__main__":
    main()
