"""Which rank owns which page of a context."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hipcli.engine.errors import UsageError
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages


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

    def runs(self, start: int, end: int, rank: int | None = None) -> list[tuple[int, int]]:
        """Tokens of [start, end) on a rank's pages, as runs [first, last)."""
        found: list[tuple[int, int]] = []
        for page in self.own(start // PAGE_TOKENS, num_pages(end), rank).tolist():
            low, high = max(page * PAGE_TOKENS, start), min((page + 1) * PAGE_TOKENS, end)
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        return found

    def tokens(self, start: int, end: int) -> list[torch.Tensor]:
        """Per rank the tokens of [start, end) on its pages, int64 ascending, counted from start."""
        return [_positions(self.runs(start, end, rank), start) for rank in range(self.ranks)]

    def move(self, pages: Sequence[int], to: int) -> None:
        """Give pages to a rank."""
        self.owners[list(pages)] = to


def _positions(runs: list[tuple[int, int]], start: int) -> torch.Tensor:
    def each() -> Iterator[torch.Tensor]:
        for low, high in runs:
            yield torch.arange(low - start, high - start)

    return torch.cat([torch.empty(0, dtype=torch.long), *each()])


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
