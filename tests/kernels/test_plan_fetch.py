"""Plans of what to fetch whereto: the kernel against plain Python, and what both promise."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.plan_fetch import plan_fetch_
from hipcli.kernels.types import SlotTables

ROWS, PAGES, SLOTS = 3, 40, 12


def new_tables(device, slots: int = SLOTS) -> SlotTables:
    """Nothing is anywhere; the first two pages and those from 35 on make no way."""

    def full(*shape: int) -> torch.Tensor:
        return torch.full(shape, -1, dtype=torch.int32, device=device)

    return SlotTables(
        full(ROWS, PAGES),
        full(ROWS, slots),
        torch.zeros(ROWS, slots, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.tensor([2, 35], dtype=torch.int32, device=device),
        torch.zeros(2, dtype=torch.int64, device=device),
    )


def fields(tables: SlotTables) -> list[torch.Tensor]:
    return [getattr(tables, field.name) for field in dataclasses.fields(tables)]


def check_promises(tables: SlotTables, before: SlotTables, wanted, moves) -> None:
    """All wanted pages have slots, no slot two pages, and what was kept is where it was."""
    for row in range(ROWS):
        pages, owners = tables.pages[row].tolist(), tables.owners[row].tolist()
        for page, slot in enumerate(pages):
            assert slot < 0 or owners[slot] == page
        assert sum(owner >= 0 for owner in owners) == sum(slot >= 0 for slot in pages)
        old = before.pages[row].tolist()
        for page in {page for page in wanted[row].tolist() if page >= 0}:
            assert pages[page] >= 0
            if old[page] >= 0:
                assert pages[page] == old[page]
        for page in (0, 1, *range(35, PAGES)):
            assert old[page] < 0 or pages[page] == old[page]
        listed = [
            (page, slot)
            for page, slot in zip(*(move[row].tolist() for move in moves), strict=True)
            if page >= 0
        ]
        fetched = {page for page, slot in enumerate(pages) if slot >= 0 and slot != old[page]}
        assert len(listed) == len(fetched)
        assert all(pages[page] == slot and page in fetched for page, slot in listed)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_random_plans(count, device):
    generator = torch.Generator().manual_seed(count)
    both = [new_tables(device), new_tables(device)]
    for _ in range(25):
        # At most 7 of them: 2 sinks and 3 kept ones have slots of their own.
        few = torch.randperm(38, generator=generator)[:7]
        wanted = few[torch.randint(0, 7, (ROWS, count), generator=generator)]
        wanted[torch.rand(ROWS, count, generator=generator) < 0.2] = -1
        wanted = wanted.int().to(device)
        before = SlotTables(*(tensor.clone() for tensor in fields(both[0])))
        moves = [
            plan_fetch_(tables, wanted, backend=backend)
            for tables, backend in zip(both, ("reference", "triton"), strict=True)
        ]
        check_promises(both[0], before, wanted, moves[0])
        for one, other in zip((*fields(both[0]), *moves[0]), (*fields(both[1]), *moves[1]),
                              strict=True):  # fmt: skip
            assert torch.equal(one, other)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_the_page_wanted_longest_ago_makes_way(backend, device):
    tables = new_tables(device, slots=4)

    def plan(*pages: int) -> list[list[int]]:
        wanted = torch.tensor([pages] * ROWS, dtype=torch.int32, device=device)
        return [move[0].tolist() for move in plan_fetch_(tables, wanted, backend=backend)]

    assert plan(0, 10, 11) == [[0, 10, 11], [0, 1, 2]]
    assert plan(12, 10, -1) == [[12, -1, -1], [3, -1, -1]]
    assert plan(13, 13, 10) == [[-1, 13, -1], [-1, 2, -1]]
    assert plan(14, 15, -1) == [[14, 15, -1], [1, 3, -1]]
    assert tables.counts.tolist() == [9 * ROWS, 7 * ROWS]


def test_refusals(device):
    tables = new_tables(device)
    with pytest.raises(ValueError, match=r"wanted: expected shape \[3, any\]"):
        plan_fetch_(tables, torch.zeros(2, 3, dtype=torch.int32, device=device))
    with pytest.raises(TypeError, match="wanted: expected dtype int32"):
        plan_fetch_(tables, torch.zeros(3, 3, dtype=torch.int64, device=device))
    with pytest.raises(NotImplementedError, match="9000 wanted pages and 12 slots"):
        wanted = torch.full((3, 9000), -1, dtype=torch.int32, device=device)
        plan_fetch_(tables, wanted, backend="triton")
