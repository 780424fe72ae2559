"""Either plan as one launch: a program a KV head.

Nothing is sorted. Every mention of a page writes its place into the page table, the last place
stays and stands for all of them. The slots that make way are those below a
threshold of age, which is found by halving.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..triton_common import require_launchable
from ..types import QUARTERS, SlotTables
from . import MOST, WHOLE

_QUARTERS = tl.constexpr(QUARTERS)
_WHOLE = tl.constexpr(WHOLE)


@triton.jit
def _oldest(ages, count, clock):
    """Whether a slot is one of the `count` oldest; the lower slots of those of the last age."""
    low = -1
    high = clock
    # The smallest age that at least `count` slots do not exceed.
    while high - low > 1:
        middle = low + (high - low) // 2
        enough = tl.sum((ages <= middle).to(tl.int32), axis=0) >= count
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    older = (ages < high).to(tl.int32)
    last = (ages == high).to(tl.int32)
    missing = count - tl.sum(older, axis=0)
    return (older > 0) | ((last > 0) & (tl.cumsum(last, axis=0) <= missing))


@triton.jit
def _plan(
    pages,
    owners,
    stamps,
    values,
    clock_at,
    kept,
    counts,
    wanted,
    moved,
    slots,
    num_wanted,
    num_pages,
    num_slots,
    page_stride,
    owner_stride,
    stamp_stride,
    value_stride,
    wanted_stride,
    WANTED_PAD: tl.constexpr,
    SLOTS_PAD: tl.constexpr,
    KEYS_ONLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pages += row * page_stride
    owners += row * owner_stride
    stamps += row * stamp_stride
    values += row * value_stride
    moved += row * num_wanted
    slots += row * num_wanted
    clock = tl.load(clock_at)
    place = tl.arange(0, WANTED_PAD)
    page = tl.load(wanted + row * wanted_stride + place, mask=place < num_wanted, other=-1)
    real = (page >= 0) & (page < num_pages)
    had = tl.load(pages + page, mask=real, other=-1)
    # Every mention must have read the slot before one of them writes its place there.
    tl.debug_barrier()
    tl.atomic_min(pages + page, -2 - place, mask=real, sem="relaxed")
    tl.debug_barrier()
    # Past the first-level cache, which atomics pass by.
    left = tl.load(pages + page, mask=real, other=-1, cache_modifier=".cg")
    first = real & (left == -2 - place)
    tl.debug_barrier()
    tl.store(pages + page, had, mask=first)
    tl.store(stamps + had, clock + place * 0, mask=first & (had >= 0))
    missed = first & (had < 0)
    # What stands there without all its values.
    again = first & (had >= 0)
    if KEYS_ONLY:
        again = again & (had < 0)
    else:
        again = again & (tl.load(values + had, mask=again, other=_WHOLE) != _WHOLE)
        tl.store(values + had, had * 0 + _WHOLE, mask=again)
    count = tl.sum(missed.to(tl.int32), axis=0)
    come = (count + tl.sum(again.to(tl.int32), axis=0)) * (
        _QUARTERS if KEYS_ONLY else 2 * _QUARTERS
    )
    tl.atomic_add(counts + 2, come.to(tl.int64))
    tl.atomic_add(counts, tl.sum(first.to(tl.int64), axis=0))
    tl.atomic_add(counts + 1, count.to(tl.int64))
    tl.debug_barrier()

    slot = tl.arange(0, SLOTS_PAD)
    inside = slot < num_slots
    owner = tl.load(owners + slot, mask=inside, other=-1)
    free = inside & ((owner < 0) | ((owner >= tl.load(kept)) & (owner < tl.load(kept + 1))))
    ages = tl.load(stamps + slot, mask=free, other=0)
    # What stays is younger than everything.
    ages = tl.where(free, ages, 0x7FFFFFFF)
    count = tl.minimum(count, tl.sum(free.to(tl.int32), axis=0))
    taken = free & _oldest(ages, count, clock)
    # The list of slots stands in `slots` until every missed page has taken its own.
    order = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(slots + order, slot, mask=taken)
    tl.store(pages + owner, slot * 0 - 1, mask=taken & (owner >= 0))
    tl.debug_barrier()
    rank = tl.cumsum(missed.to(tl.int32), axis=0) - 1
    missed = missed & (rank < count)
    victim = tl.load(slots + rank, mask=missed, other=-1)
    tl.debug_barrier()
    tl.store(pages + page, victim, mask=missed)
    tl.store(owners + victim, page, mask=missed)
    tl.store(stamps + victim, clock + place * 0, mask=missed)
    tl.store(values + victim, place * 0 + (0 if KEYS_ONLY else _WHOLE), mask=missed)
    tl.store(slots + place, tl.where(again, had, victim), mask=place < num_wanted)
    tl.store(moved + place, tl.where(missed | again, page, -1), mask=place < num_wanted)


@triton.jit
def _plan_values(
    pages,
    values,
    counts,
    quarters,
    moved,
    slots,
    num_wanted,
    num_pages,
    page_stride,
    value_stride,
    wanted_stride,
    PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PAD)
    listed = place < num_wanted
    quarter = tl.load(quarters + row * wanted_stride + place, mask=listed, other=-1)
    page = quarter // _QUARTERS
    real = (quarter >= 0) & (page < num_pages)
    slot = tl.load(pages + row * page_stride + page, mask=real, other=-1)
    real = real & (slot >= 0)
    value = values + row * value_stride + slot * _QUARTERS + quarter % _QUARTERS
    lacking = real & (tl.load(value, mask=real, other=1) == 0)
    # What is listed twice is found lacking twice.
    tl.debug_barrier()
    tl.store(value, (place * 0 + 1).to(tl.uint8), mask=lacking)
    tl.atomic_add(counts + 2, tl.sum(lacking.to(tl.int64), axis=0))
    tl.store(moved + row * num_wanted + place, tl.where(lacking, quarter, -1), mask=listed)
    tl.store(slots + row * num_wanted + place, tl.where(lacking, slot, -1), mask=listed)


def plan_fetch_(
    tables: SlotTables, wanted: torch.Tensor, keys_only: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.plan_fetch.plan_fetch_`."""
    require_launchable(wanted)
    rows, num_wanted = wanted.shape
    num_slots = tables.owners.shape[1]
    if max(num_wanted, num_slots) > MOST:
        raise NotImplementedError(
            f"{num_wanted} wanted pages and {num_slots} slots: the triton backend has {MOST}"
        )
    moved, slots = _lists(wanted)
    # The quarters of a slot as one.
    values = tables.values.view(torch.int32)
    tables.clock.add_(1)
    _plan[(rows,)](
        tables.pages,
        tables.owners,
        tables.stamps,
        values,
        tables.clock,
        tables.kept,
        tables.counts,
        wanted,
        moved,
        slots,
        num_wanted,
        tables.pages.shape[1],
        num_slots,
        tables.pages.stride(0),
        tables.owners.stride(0),
        tables.stamps.stride(0),
        values.stride(0),
        wanted.stride(0),
        WANTED_PAD=triton.next_power_of_2(max(num_wanted, 1)),
        SLOTS_PAD=triton.next_power_of_2(num_slots),
        KEYS_ONLY=keys_only,
        num_warps=4 if max(num_wanted, num_slots) <= 1024 else 8,
    )
    return moved, slots


def plan_values_(tables: SlotTables, quarters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.plan_fetch.plan_values_`."""
    require_launchable(quarters)
    rows, num_wanted = quarters.shape
    if num_wanted > MOST:
        raise NotImplementedError(f"{num_wanted} quarters of pages: the triton backend has {MOST}")
    moved, slots = _lists(quarters)
    _plan_values[(rows,)](
        tables.pages,
        tables.values,
        tables.counts,
        quarters,
        moved,
        slots,
        num_wanted,
        tables.pages.shape[1],
        tables.pages.stride(0),
        tables.values.stride(0),
        quarters.stride(0),
        PAD=triton.next_power_of_2(max(num_wanted, 1)),
        num_warps=4,
    )
    return moved, slots


def _lists(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What moves, and whereto: int32, shaped as what is wanted."""
    moved, slots = (
        torch.empty(wanted.shape, dtype=torch.int32, device=wanted.device) for _ in range(2)
    )
    return moved, slots
