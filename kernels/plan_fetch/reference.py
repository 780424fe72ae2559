"""The plan of pages in plain Python, a KV head at a time; that of their values."""

from __future__ import annotations

import torch

from ..types import QUARTERS, SlotTables


def plan_fetch_(
    tables: SlotTables, wanted: torch.Tensor, keys_only: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.plan_fetch.plan_fetch_`."""
    tables.clock.add_(1)
    clock, (sinks, kept_from) = int(tables.clock), tables.kept.tolist()
    moved, slots = torch.full_like(wanted, -1), torch.full_like(wanted, -1)
    for row, listed in enumerate(wanted.tolist()):
        pages, owners, stamps = tables.pages[row], tables.owners[row], tables.stamps[row]
        values = tables.values[row]
        # The last mention of a page stands for all of them.
        places = {page: place for place, page in enumerate(listed) if 0 <= page < len(pages)}
        had = pages.tolist()
        stamps[[had[page] for page in places if had[page] >= 0]] = clock
        missed = [(place, page) for page, place in places.items() if had[page] < 0]
        again = [
            (place, page)
            for page, place in places.items()
            if not keys_only and had[page] >= 0 and not values[had[page]].all()
        ]
        for place, page in again:
            moved[row, place], slots[row, place] = page, had[page]
            values[had[page]] = 1
        free = [
            slot
            for slot, owner in enumerate(owners.tolist())
            if owner < 0 or sinks <= owner < kept_from
        ]
        # The oldest, then in the order of slots, as the missed ones in the order of the list.
        ages = stamps.tolist()
        oldest = sorted(free, key=ages.__getitem__)[: len(missed)]
        for (place, page), slot in zip(sorted(missed), sorted(oldest), strict=False):
            if owners[slot] >= 0:
                pages[owners[slot]] = -1
            pages[page], owners[slot], stamps[slot] = slot, page, clock
            values[slot] = not keys_only
            moved[row, place], slots[row, place] = page, slot
        come = (len(missed) + len(again)) * QUARTERS * (1 if keys_only else 2)
        counts = [len(places), len(missed), come]
        tables.counts.add_(torch.tensor(counts, device=wanted.device))
    return moved, slots


def plan_values_(tables: SlotTables, quarters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.plan_fetch.plan_values_`; tensor operations that wait for nothing."""
    pages = quarters.div(QUARTERS, rounding_mode="floor")
    real = (pages >= 0) & (pages < tables.pages.shape[1])
    slots = tables.pages.gather(1, pages.masked_fill(~real, 0).long())
    real &= slots >= 0
    # Of all quarters of a row's slots; what is not real looks at the first and leaves it as it is.
    places = (slots * QUARTERS + quarters % QUARTERS).masked_fill(~real, 0).long()
    values = tables.values.flatten(1)
    lacking = real & (values.gather(1, places) == 0)
    values.scatter_reduce_(1, places, lacking.to(values.dtype), "amax")
    tables.counts[2:].add_(lacking.sum())
    return quarters.masked_fill(~lacking, -1), slots.masked_fill(~lacking, -1)
