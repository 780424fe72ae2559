"""The plan in plain Python, a KV head at a time."""

from __future__ import annotations

import torch

from ..types import SlotTables


def plan_fetch_(tables: SlotTables, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.plan_fetch.plan_fetch_`."""
    tables.clock.add_(1)
    clock, (sinks, kept_from) = int(tables.clock), tables.kept.tolist()
    moved, slots = torch.full_like(wanted, -1), torch.full_like(wanted, -1)
    for row, listed in enumerate(wanted.tolist()):
        pages, owners, stamps = tables.pages[row], tables.owners[row], tables.stamps[row]
        # The last mention of a page stands for all of them.
        places = {page: place for place, page in enumerate(listed) if 0 <= page < len(pages)}
        had = pages.tolist()
        stamps[[had[page] for page in places if had[page] >= 0]] = clock
        missed = [(place, page) for page, place in places.items() if had[page] < 0]
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
            moved[row, place], slots[row, place] = page, slot
        tables.counts.add_(torch.tensor([len(places), len(missed)], device=wanted.device))
    return moved, slots
