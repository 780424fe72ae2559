"""Top-k as a search for the threshold, one program a row, the row in registers.

Scores become integers of the same order. The threshold is found by halving the interval of
integers: every step counts the keys at or above the middle, and the search ends early once
exactly k are. Then one prefix sum places the chosen blocks in ascending order; keys equal to
the threshold are taken from the lowest position on until k are reached. Rows longer than a
program holds are chosen from in chunks first, then among the chunks' choices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import require_launchable

CHUNK = 16384


@triton.jit
def _ordered(scores):
    """int32 keys in the order of fp32 scores; both zeros are equal."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _threshold(key, usable, k):
    """A t with count(key > t) <= k <= count(key >= t), for k <= number of usable keys."""
    low = tl.min(tl.where(usable, key, 0x7FFFFFFF), axis=0)
    high = tl.max(key, axis=0)
    while low < high:
        # The upper middle of two int32 without overflow.
        middle = (low | high) - ((low ^ high) >> 1)
        count = tl.sum((key >= middle).to(tl.int32), axis=0)
        high = tl.where(count < k, middle - 1, tl.where(count == k, middle, high))
        low = tl.where(count >= k, middle, low)
    return low


@triton.jit
def _select(
    scores,
    candidates,
    out,
    out_scores,
    n,
    scores_stride,
    num_selected,
    num_candidates,
    CHUNK: tl.constexpr,
    K_PAD: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    KEEP_SCORES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    score = tl.load(scores + row * scores_stride + position, mask=position < n, other=float("-inf"))
    usable = score > float("-inf")
    key = tl.where(usable, _ordered(score), -0x80000000)
    k = tl.minimum(num_selected, tl.sum(usable.to(tl.int32), axis=0))
    threshold = _threshold(key, usable, k)

    greater = (key > threshold) & usable
    equal = (key == threshold) & usable
    needed = k - tl.sum(greater.to(tl.int32), axis=0)
    # Both counts share one prefix sum: a row has at most 2^15 keys.
    counts = tl.cumsum((greater.to(tl.int32) << 16) | equal.to(tl.int32), axis=0)
    equals = counts & 0xFFFF
    chosen = greater | (equal & (equals <= needed))
    rank = (counts >> 16) + tl.minimum(equals, needed) - 1
    block = position
    if HAS_CANDIDATES:
        per_candidate = n // num_candidates
        page = tl.load(
            candidates + row * num_candidates + position // per_candidate, mask=chosen, other=0
        )
        block = page * per_candidate + position % per_candidate
    target = (row * tl.num_programs(1) + chunk) * num_selected
    tl.store(out + target + rank, block, mask=chosen)
    tail = tl.arange(0, K_PAD)
    unused = (tail >= k) & (tail < num_selected)
    tl.store(out + target + tail, tl.full([K_PAD], -1, tl.int32), mask=unused)
    if KEEP_SCORES:
        tl.store(out_scores + target + rank, score, mask=chosen)
        nothing = tl.full([K_PAD], float("-inf"), tl.float32)
        tl.store(out_scores + target + tail, nothing, mask=unused)


def launch(
    scores: torch.Tensor,
    num_selected: int,
    candidates: torch.Tensor | None,
    chunk: int = CHUNK,
) -> torch.Tensor:
    """Select with chunks of at most `chunk` scores, a power of two up to 32768."""
    blocks, heads, n = scores.shape
    rows = scores.flatten(0, 1)
    size = min(chunk, max(16, triton.next_power_of_2(n)))
    num_chunks = triton.cdiv(n, size)
    if candidates is not None:
        candidates = candidates.contiguous()
    out = torch.empty(
        (blocks, heads, num_chunks * num_selected), dtype=torch.int32, device=scores.device
    )
    several = num_chunks > 1
    out_scores = torch.empty_like(out, dtype=torch.float32) if several else scores
    _select[(len(rows), num_chunks)](
        rows,
        candidates if candidates is not None else out,
        out,
        out_scores,
        n,
        rows.stride(0),
        num_selected,
        candidates.shape[2] if candidates is not None else 1,
        CHUNK=size,
        K_PAD=triton.next_power_of_2(num_selected),
        HAS_CANDIDATES=candidates is not None,
        KEEP_SCORES=several,
        num_warps=min(32, max(4, size // 512)),
    )
    return launch(out_scores, num_selected, out) if several else out


def select_blocks(
    scores: torch.Tensor, num_selected: int, candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """See `hipcli.kernels.select_blocks.select_blocks`."""
    require_launchable(scores)
    return launch(scores, num_selected, candidates)
