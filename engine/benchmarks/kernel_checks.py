"""Correctness of every operator on the GPU, in bf16, before anything is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hipcli.engine.store.pages import KVLayout, KVStore
from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.rope import rope as apply_rope
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.select_blocks import select_blocks
from hipcli.kernels.select_step import triton_impl as step_impl
from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_decode import triton_impl as decode_impl
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV, RopeTables, SelectionSizes, SparsePlan
from hipcli.kernels.vote import vote

# Operands and outputs rounded to bf16 a few times each.
BUDGET = 1.2e-2
DEVICE = "cuda"
SCALE = 128**-0.5
CONTEXT = 16384


def tables(positions: int = 8192, width: int = 128, dtype=torch.float32) -> RopeTables:
    """Llama's tables with theta 500,000."""
    inverse = 500000.0 ** (-torch.arange(0, width, 2, device=DEVICE).double() / width)
    angles = torch.arange(positions, device=DEVICE).double()[:, None] * inverse
    angles = torch.cat((angles, angles), -1)
    return RopeTables(angles.cos().to(dtype), angles.sin().to(dtype))


def paged(context: int) -> PagedKV:
    """Random keys and values, pages in shuffled slots."""
    count = context // 64
    pages = torch.randn(count, 2, 8, 64, 128, dtype=torch.bfloat16, device=DEVICE)
    table = torch.randperm(count, device=DEVICE).int()
    return PagedKV(pages[:, 0], pages[:, 1], table)


def paged_fp8(context: int) -> PagedKV:
    """Random keys and values as a store quantises them, pages in shuffled slots."""
    layout = KVLayout(1, 8, 128, torch.bfloat16, kv_dtype="fp8_e4m3")
    store = KVStore(layout, context, "triton", DEVICE)
    step = min(context, 65536)
    for start in range(0, context, step):
        shape = (min(step, context - start), 8, 128)
        k, v = (torch.randn(shape, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        store.append(0, start, k, v)
    return replace(store.kv[0], page_table=torch.randperm(context // 64, device=DEVICE).int())


def paged_by_head(context: int) -> PagedKV:
    """The same, every KV head's pages in slots of its own."""
    tables = [torch.randperm(context // 64, device=DEVICE) for _ in range(8)]
    return replace(paged_fp8(context), page_table=torch.stack(tables).int())


def relative(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth|| over the entries where the truth is finite."""
    finite = truth.isfinite()
    if not torch.equal(value.isfinite(), finite):
        raise AssertionError("finite entries differ from the reference's")
    difference = (value[finite].double() - truth[finite].double()).norm()
    return float(difference / truth[finite].double().norm())


def random_plan(blocks: int, size: int, first: int) -> SparsePlan:
    """A plan of 128 random blocks of 16 tokens between sinks and window."""
    starts = [(first + block * size - 1024) // 64 * 64 for block in range(blocks)]
    indices = torch.stack(
        [
            torch.stack(
                [
                    (torch.randperm(start // 16 - 16, device=DEVICE)[:128] + 16).sort().values
                    for _ in range(8)
                ]
            )
            for start in starts
        ]
    )
    window_starts = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    return SparsePlan(
        indices.int(), window_starts, size, 16, 256, 256 + 2048 + 1024 + 64 + 2 * size
    )


def check_rope() -> float:
    """Error of rope."""
    x = torch.randn(100, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    positions = torch.randint(0, 8192, (100,), device=DEVICE)
    return relative(
        apply_rope(x, positions, tables()), apply_rope(x, positions, tables(), backend="reference")
    )


def check_attention(tokens: int, size: int, pages: Callable[[int], PagedKV] = paged) -> float:
    """Error of sparse_prefill (size > 1) or sparse_decode."""
    kv, length = pages(CONTEXT), torch.tensor([CONTEXT - 5], dtype=torch.int32, device=DEVICE)
    q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    plan = random_plan(-(-tokens // size), size, CONTEXT - 5 - tokens)
    run = sparse_decode if size == 1 else sparse_prefill
    arguments = (q, kv, plan, tables(), length, SCALE)
    (out, lse), (true_out, true_lse) = run(*arguments), run(*arguments, backend="reference")
    return max(relative(out, true_out), relative(lse, true_lse))


def check_selection(
    tokens: int,
    size: int,
    stride: int,
    dtype: torch.dtype,
    pages: Callable[[int], PagedKV] = paged,
) -> float:
    """Error of page and block scores; the selections must attain the reference's mass."""
    kv, length = pages(CONTEXT), torch.tensor([CONTEXT], dtype=torch.int32, device=DEVICE)
    q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    index = new_page_index("bounds", (8, CONTEXT // 64, 128), 64, dtype=dtype, device=DEVICE)
    update_page_index_(index, kv.k_pages, kv.page_table, length, CONTEXT, k_scales=kv.k_scales)
    blocks = -(-tokens // size)
    starts = torch.full((blocks,), CONTEXT - 1024, dtype=torch.int32, device=DEVICE)
    arguments = (q, index, starts, tables(), 1024, size, stride, 256)
    scores, truth = score_pages(*arguments), score_pages(*arguments, backend="reference")
    error = relative(scores, truth)
    best = select_blocks(truth, 64)
    if not torch.equal(best, select_blocks(truth, 64, backend="reference")):
        raise AssertionError("select_blocks differs from the reference")
    arguments = (q, kv, best, tables(), 1024, size, 16, stride)
    scores, truth = score_blocks(*arguments), score_blocks(*arguments, backend="reference")
    error = max(error, relative(scores, truth))
    chosen, best = select_blocks(scores, 128), select_blocks(truth, 128, backend="reference")
    weights = (truth * SCALE).softmax(-1)
    mass = [weights.gather(-1, picked.long()).sum(-1) for picked in (chosen, best)]
    if not (mass[0] >= 0.999 * mass[1]).all():
        raise AssertionError("selected blocks attain less than 0.999 of the reference's mass")
    return error


def check_step(early: bool) -> float:
    """A fused decode step must choose and attend as its operators do, ten times over."""
    kv, length = paged(CONTEXT), torch.tensor([CONTEXT], dtype=torch.int32, device=DEVICE)
    q = torch.randn(1, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    index = new_page_index("bounds", (8, CONTEXT // 64, 128), 64, dtype=q.dtype, device=DEVICE)
    update_page_index_(index, kv.k_pages, kv.page_table, length, CONTEXT)
    start = torch.tensor([CONTEXT - 1088], dtype=torch.int32, device=DEVICE)
    scores = score_pages(q, index, start, tables(), 1024, 1, 1, 256)
    pages = select_blocks(scores, 64)
    best = select_blocks(score_blocks(q, kv, pages, tables(), 1024, 1, 16, 1), 128, pages)
    counters = torch.zeros(8, dtype=torch.int32, device=DEVICE)
    sizes, errors = SelectionSizes(1024, 1, 16, 1, 256, 64, 128), []
    for _ in range(10):
        chosen = step_impl.launch(
            q, kv, index, start, length, tables(), sizes, counters, step_impl.Variant(early=early)
        )
        plan = SparsePlan(chosen, start, 1, 16, 256, 256 + 2048 + 1152)
        arguments = (q, kv, plan, tables(), length, SCALE)
        out = decode_impl.launch(*arguments, counters, None, early)[0]
        if not torch.equal(chosen, best) or counters.any():
            raise AssertionError("the fused step differs from its operators")
        errors.append(relative(out, sparse_decode(*arguments, backend="reference")[0]))
    return max(errors)


def check_vote(tokens: int, pages: Callable[[int], PagedKV] = paged) -> float:
    """Error of vote."""
    kv, length = pages(CONTEXT), torch.tensor([CONTEXT - 100], dtype=torch.int32, device=DEVICE)
    q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    arguments = (q, kv, length, tables(), 1024, SCALE)
    results = zip(vote(*arguments), vote(*arguments, backend="reference"), strict=True)
    return max(relative(value, truth) for value, truth in results)


CHECKS: dict[str, Callable[[], float]] = {
    "rope": check_rope,
    "sparse_prefill": lambda: check_attention(200, 64),
    "sparse_decode": lambda: check_attention(3, 1),
    "selection prefill": lambda: check_selection(150, 64, 4, torch.bfloat16),
    "selection decode": lambda: check_selection(1, 1, 1, torch.bfloat16),
    "selection fp8": lambda: check_selection(1, 1, 1, torch.float8_e4m3fn),
    "step": lambda: check_step(False),
    "step, early": lambda: check_step(True),
    "vote 1": lambda: check_vote(1),
    "vote 16": lambda: check_vote(16),
    "vote 64": lambda: check_vote(64),
    "sparse_prefill, fp8 KV": lambda: check_attention(200, 64, paged_fp8),
    "sparse_decode, fp8 KV": lambda: check_attention(3, 1, paged_fp8),
    "selection prefill, fp8 KV": lambda: check_selection(150, 64, 4, torch.bfloat16, paged_fp8),
    "selection decode, fp8 KV": lambda: check_selection(1, 1, 1, torch.float8_e4m3fn, paged_fp8),
    "vote 16, fp8 KV": lambda: check_vote(16, paged_fp8),
    "vote 64, fp8 KV": lambda: check_vote(64, paged_fp8),
    "sparse_prefill, own tables": lambda: check_attention(200, 64, paged_by_head),
    "sparse_decode, own tables": lambda: check_attention(3, 1, paged_by_head),
    "selection, own tables": lambda: check_selection(150, 64, 4, torch.bfloat16, paged_by_head),
    "vote 64, own tables": lambda: check_vote(64, paged_by_head),
}


def check_all(guard: Callable[[str, Callable[[], None]], None]) -> dict[str, float]:
    """Run every check under `guard`; relative errors of those that passed."""
    errors: dict[str, float] = {}

    def run(name: str, check: Callable[[], float]) -> None:
        error = check()
        if not error < BUDGET:
            raise AssertionError(f"relative error {error:.2e} is over {BUDGET:.1e}")
        errors[name] = round(error, 6)
        print(f"right  {name:26s} {error:.2e}", flush=True)

    for name, check in CHECKS.items():
        guard(f"check {name}", lambda name=name, check=check: run(name, check))
    return errors
