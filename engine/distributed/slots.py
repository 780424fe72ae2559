"""Where in a rank's memory its own pages stand: one slot each, and none for pages of others."""

from collections.abc import Iterator, Sequence

import torch

from hipcli.engine.distributed.placement import Placement
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages

# Of the slots there are, the part that is taken more when a page comes and none is free: memory
# grows by copying a layer, which is not to be done page by page.
GROWTH = 16


class OwnSlots:
    """The slots of one rank.

    Args:
        placement: which pages are this rank's.
        fixed: every page stands in the slot of its number, where a file lies under all of them
            and slots that are never written cost nothing.

    Attributes:
        of: int64 [capacity in pages] on the host, the slot of each page; -1 for pages of others.
        count: how many slots memory has, at least one.
    """

    def __init__(self, placement: Placement, *, fixed: bool) -> None:
        own = placement.own(0, len(placement.owners))
        self.placement, self.fixed = placement, fixed
        self.of = torch.full_like(placement.owners, -1)
        self.of[own] = own if fixed else torch.arange(len(own))
        self.count = len(self.of) if fixed else max(len(own), 1)
        self._free = [] if fixed else list(range(len(own), self.count))

    def short_of(self, pages: int) -> int:
        """How many slots memory must get before so many more pages can come."""
        lacking = 0 if self.fixed else pages - len(self._free)
        return max(lacking, self.count // GROWTH) if lacking > 0 else 0

    def grown(self, slots: int) -> None:
        """Memory has so many slots more."""
        self._free.extend(range(self.count, self.count + slots))
        self.count += slots

    def take(self, pages: Sequence[int]) -> None:
        """Pages that come get slots that are free, neighbours where they can."""
        slots = list(pages)
        if not self.fixed:
            self._free.sort()
            slots, self._free = self._free[: len(pages)], self._free[len(pages) :]
        self.of[list(pages)] = torch.tensor(slots, dtype=torch.long)

    def leave(self, pages: Sequence[int]) -> None:
        """Pages that go set their slots free."""
        if not self.fixed:
            self._free.extend(self.of[list(pages)].tolist())
        self.of[list(pages)] = -1

    def runs(self, pages: torch.Tensor) -> Iterator[tuple[list[int], int]]:
        """Own pages, int64 ascending, in runs whose slots follow one another.

        Yields:
            the pages of a run, and the slot of its first one.
        """
        slots = self.of[pages]
        breaks = ((slots[1:] - slots[:-1]) != 1).nonzero().flatten() + 1
        for run in pages.tensor_split(breaks) if len(pages) else ():
            yield run.tolist(), int(self.of[run[0]])

    def written(self, start: int, end: int) -> list[tuple[int, int]]:
        """Where those of the tokens [start, end) stand that are on own pages.

        Positions count as if the slots were a sequence of their own.

        Returns:
            runs [first, last) of positions, in the order of the tokens.
        """
        own = self.placement.own(start // PAGE_TOKENS, num_pages(end))
        found = []
        for pages, slot in self.runs(own):
            # Only the first and the last page of all can be written in part.
            shift = (slot - pages[0]) * PAGE_TOKENS
            first = max(start, pages[0] * PAGE_TOKENS) + shift
            behind = max((pages[-1] + 1) * PAGE_TOKENS - end, 0)
            found.append((first, (slot + len(pages)) * PAGE_TOKENS - behind))
        return found
