"""The planner of slots against a model of it in plain Python."""

import random

import pytest
import torch

from hipcli.engine.store.slots import Slots
from hipcli.kernels.types import QUARTERS

EVERY = set(range(QUARTERS))


class Model:
    """One KV head of one layer: who wanted which slot last, and which values are there."""

    def __init__(self, slots: int) -> None:
        self.page_of: list[int | None] = [None] * slots
        self.stamp = [0] * slots
        self.values: list[set[int]] = [set() for _ in range(slots)]
        self.clock = self.come = 0

    def take(self, wanted: set[int], sinks: int, kept_from: int) -> dict[int, int]:
        """Missing pages, slots unknown yet."""
        self.clock += 1
        for slot, page in enumerate(self.page_of):
            if page in wanted:
                self.stamp[slot] = self.clock
        missing = sorted(wanted - set(self.page_of))
        free = [
            slot
            for slot, page in enumerate(self.page_of)
            if page is None or (page not in wanted and sinks <= page < kept_from)
        ]
        oldest = {self.stamp[slot] for slot in free}
        assert len(missing) <= len(free), oldest
        return dict.fromkeys(missing, -1)

    def complete(self, wanted: set[int]) -> dict[int, int]:
        """Wanted pages that are there without all their values, which come now."""
        lacking = {
            page: slot
            for slot, page in enumerate(self.page_of)
            if page in wanted and self.values[slot] != EVERY
        }
        for slot in lacking.values():
            self.values[slot] = set(EVERY)
        self.come += 2 * QUARTERS * len(lacking)
        return lacking

    def want_values(self, quarters: set[int]) -> dict[int, int]:
        """Those of them that come now."""
        found = {}
        for slot, page in enumerate(self.page_of):
            for part in EVERY - self.values[slot] if page is not None else ():
                if page * QUARTERS + part in quarters:
                    found[page * QUARTERS + part] = slot
                    self.values[slot].add(part)
        self.come += len(found)
        return found

    def accept(
        self, moves: dict[int, int], wanted: set[int], sinks: int, kept_from: int, parts: set[int]
    ) -> None:
        """Take over what the planner chose, if it is among the longest unwanted."""
        self.come += (QUARTERS + len(parts)) * len(moves)
        ages = sorted(
            self.stamp[slot]
            for slot, page in enumerate(self.page_of)
            if page is None or (page not in wanted and sinks <= page < kept_from)
        )[: len(moves)]
        assert sorted(self.stamp[slot] for slot in moves.values()) == ages
        for page, slot in moves.items():
            former = self.page_of[slot]
            assert former is None or (former not in wanted and sinks <= former < kept_from)
            self.page_of[slot], self.stamp[slot] = page, self.clock
            self.values[slot] = set(parts)


def planned(moves, row: int) -> dict[int, int]:
    pages, slots = moves.pages[row].tolist(), moves.slots[row].tolist()
    found = {page: slot for page, slot in zip(pages, slots, strict=True) if page >= 0}
    assert len(found) == sum(page >= 0 for page in pages)
    assert all((page < 0) == (slot < 0) for page, slot in zip(pages, slots, strict=True))
    return found


@pytest.mark.parametrize("num_slots", [9, 12, 40])
@pytest.mark.parametrize("seed", range(3))
def test_planner_is_the_model(num_slots: int, seed: int) -> None:
    heads, pages = 3, 60
    draw = random.Random(seed)
    slots = Slots((2, heads, pages, num_slots), torch.device("cpu"))
    models = [[Model(num_slots) for _ in range(heads)] for _ in range(2)]
    sinks, first, end, wanted_pages, missed_pages, uncounted = 0, 0, 0, 0, 0, 0
    for _ in range(150):
        if draw.random() < 0.3 and end < pages:
            # A pass appends: a window of at most three pages and two sinks stay.
            end += 1
            sinks, first = min(2, max(0, end - 3)), max(0, end - 3)
            slots.keep(sinks, first)
            runs = [range(sinks), range(first, end)]
            moves = slots.take_in_all(runs)
            wanted = {page for run in runs for page in run}
            for layer in range(2):
                for head in range(heads):
                    model = models[layer][head]
                    before = model.come
                    found = planned(moves, layer * heads + head)
                    again = model.complete(wanted)
                    assert {page: found.pop(page) for page in again} == again
                    assert set(found) == set(model.take(wanted, sinks, first))
                    model.accept(found, wanted, sinks, first, EVERY)
                    uncounted += model.come - before
        elif draw.random() < 0.05 and end > 5:
            end -= draw.randrange(3)
            slots.forget(end)
            for model in (model for layer in models for model in layer):
                for slot, page in enumerate(model.page_of):
                    if page is not None and page >= end:
                        model.page_of[slot], model.stamp[slot] = None, 0
        elif end:
            layer = draw.randrange(2)
            most = min(num_slots - sinks - (end - first), end)
            rows = [
                [draw.choice([-1, draw.randrange(end)]) for _ in range(draw.randrange(most + 1))]
                for _ in range(heads)
            ]
            longest = max(map(len, rows))
            if not longest:
                continue
            rows = [row + [-1] * (longest - len(row)) for row in rows]
            keys_only = draw.random() < 0.5
            moves = slots.take(layer, torch.tensor(rows, dtype=torch.int32), keys_only=keys_only)
            for head, row in enumerate(rows):
                model, wanted = models[layer][head], set(row) - {-1}
                found = planned(moves, head)
                again = {} if keys_only else model.complete(wanted)
                assert {page: found.pop(page) for page in again} == again
                assert set(found) == set(model.take(wanted, sinks, first))
                model.accept(found, wanted, sinks, first, set() if keys_only else EVERY)
                wanted_pages += len(wanted)
                missed_pages += len(found)
        if draw.random() < 0.5:
            layer = draw.randrange(2)
            quarters = [draw.sample(range(-1, pages * QUARTERS), 40) for _ in range(heads)]
            moves = slots.take_values(layer, torch.tensor(quarters, dtype=torch.int32))
            for head, row in enumerate(quarters):
                assert planned(moves, head) == models[layer][head].want_values(set(row))
        for other in models[0] + models[1]:
            other.clock = max(model.clock for model in models[0] + models[1])
        for layer in range(2):
            for head in range(heads):
                table = slots.tables[layer, head].tolist()
                there = {
                    page: slot
                    for slot, page in enumerate(models[layer][head].page_of)
                    if page is not None
                }
                assert {page: slot for page, slot in enumerate(table) if slot >= 0} == there
    come = sum(model.come for layer in models for model in layer) - uncounted
    assert slots.counts.tolist() == [wanted_pages, missed_pages, come]


def test_every_page_missed_and_every_slot_used_again() -> None:
    slots = Slots((1, 1, 12, 4), torch.device("cpu"))
    for turn in range(9):
        first = turn % 3 * 4
        moves = slots.take(0, torch.arange(first, first + 4, dtype=torch.int32).view(1, 4))
        assert sorted(moves.pages[0].tolist()) == list(range(first, first + 4))
        assert sorted(moves.slots[0].tolist()) == [0, 1, 2, 3]
    assert slots.counts.tolist() == [36, 36, 36 * 2 * QUARTERS]


def test_tables_of_a_million_tokens_are_small() -> None:
    slots = Slots((32, 8, 1_000_000 // 64, 960), torch.device("meta"))
    tensors = (slots._tables, slots._owners, slots._stamps, slots._values)
    assert sum(tensor.nbytes for tensor in tensors) < 50e6
