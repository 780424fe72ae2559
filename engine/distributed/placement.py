"""Which rank owns which page of a context."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hipcli.engine.errors import UsageError
from hipcli.engine.store.layout import PAGE_TOKENS


def interleaved(pages: int, ranks: int) -> list[int]:
    """Page p belongs to rank p mod `ranks`: all ranks have as much to do at every moment."""
    return [page % ranks for page in range(pages)]


def contiguous(pages: int, ranks: int) -> list[int]:
    """Equal runs of pages, the first to rank 0: only one rank at a time reads."""
    return [page * ranks // max(pages, 1) for page in range(pages)]


PLACEMENTS: dict[str, Callable[[int, int], list[int]]] = {
    "interleaved": interleaved,
    "contiguous": contiguous,
}


@dataclass(slots=True)
class Placement:
    """The owners of all pages that a store can have.

    Args:
        owners: int64 [capacity in pages], the rank of each.
        rank: of this process.
        ranks: how many there are.
    """

    owners: torch.Tensor
    rank: int
    ranks: int

    @classmethod
    def of(cls, owners: Sequence[int], rank: int, ranks: int) -> "Placement":
        """From a list of owners.

        Raises:
            ValueError: an owner is no rank.
        """
        if any(not 0 <= owner < ranks for owner in owners):
            raise ValueError(f"owners of pages must be ranks from 0 to {ranks - 1}")
        return cls(torch.tensor(owners, dtype=torch.long), rank, ranks)

    def own(self, first: int, last: int, rank: int | None = None) -> torch.Tensor:
        """Pages of [first, last) of this rank or of another one, int64 ascending."""
        mine = self.owners[first:last] == (self.rank if rank is None else rank)
        return mine.nonzero().flatten() + first

    def tokens(self, start: int, end: int) -> list[torch.Tensor]:
        """Per rank the tokens of [start, end) on its pages, int64 ascending, counted from start."""
        owners = self.owners[torch.arange(start, end) // PAGE_TOKENS]
        return [(owners == rank).nonzero().flatten() for rank in range(self.ranks)]

    def move(self, pages: Sequence[int], to: int) -> None:
        """Give pages to a rank."""
        self.owners[list(pages)] = to


def owners_of(name: str, pages: int, ranks: int) -> list[int]:
    """Owners of pages placed as `name` says.

    Raises:
        UsageError: no such placement.
    """
    if name not in PLACEMENTS:
        raise UsageError(f"unknown placement {name!r}", f"placements: {', '.join(PLACEMENTS)}")
    return PLACEMENTS[name](pages, ranks)


def most_pages(name: str, pages: int, ranks: int) -> int:
    """Pages of the rank that has most of them, placed as `name` says. Raises UsageError."""
    return max(Counter(owners_of(name, pages, ranks)).values(), default=0)
