"""Top-k as a search for the threshold, one program a row, the row in registers.

Scores become integers of the same order. The threshold is found by quartering the interval of
integers: every step counts the keys at or above three cuts, and the search ends early once
exactly k are. Then one prefix sum places the chosen blocks in ascending order; keys equal to
the threshold are taken from the lowest position on until k are reached. Rows longer than a
program holds are chosen from in chunks first, then among the chunks' choices.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import begin, early_options, require_launchable

# A step costs its barriers: few warps with many scores each are faster than many warps.
CHUNK = 2048
MAX_CHUNK = 32768


@triton.jit
def _ordered(scores):
    """int32 keys in the order of fp32 scores; both zeros are equal."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _threshold(key, usable, k):
    """A t with count(key > t) <= k <= count(key >= t), for k <= number of usable keys."""
    low = tl.min(tl.where(usable, key, 0x7FFFFFFF), axis=0).to(tl.int64)
    high = tl.max(key, axis=0).to(tl.int64)
    while low < high:
        span = high - low
        first = low + (span + 3) // 4
        second = low + (2 * span + 3) // 4
        third = low + (3 * span + 3) // 4
        # Three counts share one sum, 16 bits each: a row has at most 2^15 keys.
        two = (key >= first).to(tl.int32) + ((key >= second).to(tl.int32) << 16)
        counts = tl.sum(two.to(tl.int64) + ((key >= third).to(tl.int64) << 32), axis=0)
        above_first = counts & 0xFFFF
        above_second = (counts >> 16) & 0xFFFF
        above_third = counts >> 32
        high = tl.where(above_third < k, third - 1, high)
        high = tl.where(above_second < k, second - 1, high)
        high = tl.where(above_first < k, first - 1, high)
        low = tl.where(above_first >= k, first, low)
        low = tl.where(above_second >= k, second, low)
        low = tl.where(above_third >= k, third, low)
        # Exactly k keys lie at or above a cut: it is the threshold.
        cut = tl.where(above_first == k, first, tl.where(above_second == k, second, third))
        done = (above_first == k) | (above_second == k) | (above_third == k)
        low = tl.where(done, cut, low)
        high = tl.where(done, cut, high)
    return low.to(tl.int32)


@triton.jit
def choose(score, k):
    """The k best usable scores of a row: chosen, their ranks in ascending position, how many."""
    usable = score > float("-inf")
    key = tl.where(usable, _ordered(score), -0x80000000)
    k = tl.minimum(k, tl.sum(usable.to(tl.int32), axis=0))
    threshold = _threshold(key, usable, k)
    greater = (key > threshold) & usable
    equal = (key == threshold) & usable
    needed = k - tl.sum(greater.to(tl.int32), axis=0)
    # Both counts share one prefix sum: a row has at most 2^15 keys.
    counts = tl.cumsum((greater.to(tl.int32) << 16) | equal.to(tl.int32), axis=0)
    equals = counts & 0xFFFF
    chosen = greater | (equal & (equals <= needed))
    return chosen, (counts >> 16) + tl.minimum(equals, needed) - 1, k


@triton.jit
def store_blocks(
    target, chosen, rank, k, position, listed, per_candidate, num_selected, PAD: tl.constexpr
):
    """Store chosen positions of candidate pages as block numbers, then -1 for the unused tail."""
    page = tl.load(listed + position // per_candidate, mask=chosen, other=0)
    tl.store(target + rank, page * per_candidate + position % per_candidate, mask=chosen)
    fill_tail(target, k, num_selected, -1, PAD)


@triton.jit
def fill_tail(target, k, num_selected, value, PAD: tl.constexpr):
    """Store `value` at k.. of a list of num_selected entries."""
    tail = tl.arange(0, PAD)
    mask = (tail >= k) & (tail < num_selected)
    tl.store(target + tail, tl.full([PAD], value, target.dtype.element_ty), mask=mask)


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
    EARLY: tl.constexpr,
):
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    position = chunk * CHUNK + tl.arange(0, CHUNK)
    score = tl.load(scores + row * scores_stride + position, mask=position < n, other=float("-inf"))
    chosen, rank, k = choose(score, num_selected)
    target = (row * tl.num_programs(1) + chunk) * num_selected
    if HAS_CANDIDATES:
        store_blocks(
            out + target, chosen, rank, k, position, candidates + row * num_candidates,
            n // num_candidates, num_selected, K_PAD,
        )  # fmt: skip
    else:
        tl.store(out + target + rank, position, mask=chosen)
        fill_tail(out + target, k, num_selected, -1, K_PAD)
    if KEEP_SCORES:
        tl.store(out_scores + target + rank, score, mask=chosen)
        fill_tail(out_scores + target, k, num_selected, float("-inf"), K_PAD)


def launch(
    scores: torch.Tensor,
    num_selected: int,
    candidates: torch.Tensor | None,
    chunk: int = CHUNK,
    num_warps: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    """Select with chunks of at most `chunk` scores, a power of two up to 32768.

    `early` as in `triton_common.begin`.
    """
    blocks, heads, n = scores.shape
    rows = scores.flatten(0, 1)
    # A chunk that may keep all of its scores would make no list shorter.
    chunk = max(chunk, 2 * triton.next_power_of_2(num_selected))
    if chunk > MAX_CHUNK:
        raise NotImplementedError(
            f"num_selected {num_selected}: the triton backend selects up to {MAX_CHUNK // 2}"
        )
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
        EARLY=early,
        num_warps=num_warps or min(32, max(4, size // 512)),
        **early_options(early),
    )
    return launch(out_scores, num_selected, out, chunk, num_warps, early) if several else out


def select_blocks(
    scores: torch.Tensor, num_selected: int, candidates: torch.Tensor | None = None
) -> torch.Tensor:
    """See `hipcli.kernels.select_blocks.select_blocks`."""
    require_launchable(scores)
    return launch(scores, num_selected, candidates)
