"""Plans of what to fetch whereto: the kernel against plain Python, and what both promise."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.plan_fetch import plan_fetch_, plan_values_
from hipcli.kernels.types import QUARTERS, SlotTables

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
        torch.zeros(3, dtype=torch.int64, device=device),
        torch.zeros(ROWS, slots + 1, QUARTERS, dtype=torch.uint8, device=device)[:, :slots],
    )


def fields(tables: SlotTables) -> list[torch.Tensor]:
    return [getattr(tables, field.name) for field in dataclasses.fields(tables)]


def check_promises(tables: SlotTables, before: SlotTables, wanted, moves, keys_only) -> None:
    """All wanted pages have slots, no slot two pages, and what was kept is where it was. Values
    are there of all that was wanted with them, and of nothing that came without."""
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
        there, was_there = (x.values[row].all(-1).tolist() for x in (tables, before))
        for page in {page for page in wanted[row].tolist() if page >= 0}:
            if not keys_only:
                assert there[pages[page]]
                if old[page] >= 0 and not was_there[old[page]]:
                    fetched.add(page)
            elif page in fetched:
                assert not tables.values[row, pages[page]].any()
        assert len(listed) == len(fetched)
        assert all(pages[page] == slot and page in fetched for page, slot in listed)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_random_plans(count, device):
    generator = torch.Generator().manual_seed(count)
    both = [new_tables(device), new_tables(device)]
    for turn in range(25):
        keys_only = turn % 5 in (1, 2)
        # At most 7 of them: 2 sinks and 3 kept ones have slots of their own.
        few = torch.randperm(38, generator=generator)[:7]
        wanted = few[torch.randint(0, 7, (ROWS, count), generator=generator)]
        wanted[torch.rand(ROWS, count, generator=generator) < 0.2] = -1
        wanted = wanted.int().to(device)
        before = SlotTables(*(tensor.clone() for tensor in fields(both[0])))
        moves = [
            plan_fetch_(tables, wanted, keys_only=keys_only, backend=backend)
            for tables, backend in zip(both, ("reference", "triton"), strict=True)
        ]
        check_promises(both[0], before, wanted, moves[0], keys_only)
        assert_same(both, moves)
        if keys_only:
            check_values(both, wanted, generator)


def check_values(both: list[SlotTables], wanted: torch.Tensor, generator: torch.Generator) -> None:
    """Quarters of what is there, of what is not, and twice the same."""
    pages = torch.cat((wanted, torch.tensor([[36, -1, 99]] * ROWS).to(wanted)), 1)
    quarters = torch.randint(0, QUARTERS, pages.shape, generator=generator).to(wanted)
    quarters = torch.where(pages >= 0, pages * QUARTERS + quarters, -1)
    before = both[0].values.clone()
    moves = [
        plan_values_(tables, quarters, backend=backend)
        for tables, backend in zip(both, ("reference", "triton"), strict=True)
    ]
    assert_same(both, moves)
    for row in range(ROWS):
        expected, table = before[row].clone(), both[0].pages[row].tolist()
        for place, quarter in enumerate(quarters[row].tolist()):
            page, part = divmod(quarter, QUARTERS)
            slot = table[page] if 0 <= page < PAGES else -1
            lacks = slot >= 0 and not before[row, slot, part]
            found = [int(move[row, place]) for move in moves[0]]
            assert found == ([quarter, slot] if lacks else [-1, -1])
            if lacks:
                expected[slot, part] = 1
        assert torch.equal(both[0].values[row], expected)


def assert_same(both: list[SlotTables], moves) -> None:
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
    assert tables.counts.tolist() == [9 * ROWS, 7 * ROWS, 7 * 8 * ROWS]


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_values_come_when_they_are_wanted(backend, device):
    tables = new_tables(device, slots=4)

    def plan(*pages: int, keys_only: bool = False) -> list[list[int]]:
        wanted = torch.tensor([pages] * ROWS, dtype=torch.int32, device=device)
        moves = plan_fetch_(tables, wanted, keys_only=keys_only, backend=backend)
        return [move[0].tolist() for move in moves]

    def values(*quarters: int) -> list[list[int]]:
        listed = torch.tensor([quarters] * ROWS, dtype=torch.int32, device=device)
        return [move[0].tolist() for move in plan_values_(tables, listed, backend=backend)]

    assert plan(10, 11, keys_only=True) == [[10, 11], [0, 1]]
    assert values(40, 47, -1, 48) == [[40, 47, -1, -1], [0, 1, -1, -1]]
    assert values(40, 41, 42, 43) == [[-1, 41, 42, 43], [-1, 0, 0, 0]]
    # All of page 10 is there now, of page 11 a quarter.
    assert plan(10, 11, 12) == [[-1, 11, 12], [-1, 1, 2]]
    assert plan(10, 11, 12, keys_only=True) == plan(10, 11, 12) == [[-1] * 3, [-1] * 3]
    # A slot that is used again has nothing of what stood there.
    assert plan(13, 14, keys_only=True) == [[13, 14], [0, 3]]
    assert values(52, 56) == [[52, 56], [0, 3]]
    assert tables.counts[2].item() == ROWS * (8 + 2 + 3 + 16 + 8 + 2)


def test_refusals(device):
    tables = new_tables(device)
    with pytest.raises(ValueError, match=r"wanted: expected shape \[3, any\]"):
        plan_fetch_(tables, torch.zeros(2, 3, dtype=torch.int32, device=device))
    with pytest.raises(TypeError, match="wanted: expected dtype int32"):
        plan_fetch_(tables, torch.zeros(3, 3, dtype=torch.int64, device=device))
    with pytest.raises(NotImplementedError, match="9000 wanted pages and 12 slots"):
        wanted = torch.full((3, 9000), -1, dtype=torch.int32, device=device)
        plan_fetch_(tables, wanted, backend="triton")
