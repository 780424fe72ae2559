"""Plans of what to fetch on a GPU against plain Python, and inside a CUDA graph."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.plan_fetch import plan_fetch_, plan_values_
from hipcli.kernels.types import QUARTERS, SlotTables

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
ROWS, PAGES = 8, 16384


def new_tables(slots: int) -> SlotTables:
    """Nothing is anywhere; four sinks and the last 17 pages make no way."""

    def full(*shape: int) -> torch.Tensor:
        return torch.full(shape, -1, dtype=torch.int32, device=DEVICE)

    return SlotTables(
        full(ROWS, PAGES),
        full(ROWS, slots),
        torch.zeros(ROWS, slots, dtype=torch.int32, device=DEVICE),
        torch.zeros(1, dtype=torch.int32, device=DEVICE),
        torch.tensor([4, PAGES - 17], dtype=torch.int32, device=DEVICE),
        torch.zeros(3, dtype=torch.int64, device=DEVICE),
        torch.zeros(ROWS, slots + 1, QUARTERS, dtype=torch.uint8, device=DEVICE)[:, :slots],
    )


def fields(tables: SlotTables) -> list[torch.Tensor]:
    return [getattr(tables, field.name) for field in dataclasses.fields(tables)]


def some_pages(count: int, pool: int, generator: torch.Generator) -> torch.Tensor:
    """Pages of a run that moves on, repeated and left out here and there."""
    first = int(torch.randint(4, PAGES - 17 - pool, (), generator=generator))
    wanted = torch.randint(first, first + pool, (ROWS, count), generator=generator)
    wanted[torch.rand(ROWS, count, generator=generator) < 0.1] = -1
    return wanted.int().to(DEVICE)


def assert_same(one: SlotTables, other: SlotTables, moves) -> None:
    for left, right in zip(fields(one), fields(other), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(*moves, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("slots, count", [(960, 256), (960, 900), (300, 256), (5000, 3000)])
def test_random_plans(slots, count):
    generator = torch.Generator().manual_seed(slots)
    both = [new_tables(slots), new_tables(slots)]
    for pool in (slots // 2, slots // 3, slots - 30, slots // 2, 40):
        wanted = some_pages(count, pool, generator)
        for keys_only in (True, True, False):
            moves = [
                plan_fetch_(both[0], wanted, keys_only=keys_only, backend="reference"),
                plan_fetch_(both[1], wanted, keys_only=keys_only),
            ]
            assert_same(*both, moves)
            part = torch.randint(0, QUARTERS, wanted.shape, generator=generator).to(DEVICE)
            quarters = torch.where(wanted >= 0, wanted * QUARTERS + part, -1).int()
            moves = [
                plan_values_(both[0], quarters, backend="reference"),
                plan_values_(both[1], quarters),
            ]
            assert_same(*both, moves)


def test_in_a_graph():
    generator = torch.Generator().manual_seed(5)
    both = [new_tables(960), new_tables(960)]
    wanted = torch.full((ROWS, 256), -1, dtype=torch.int32, device=DEVICE)
    for tables, backend in zip(both, ("reference", "triton"), strict=True):
        plan_fetch_(tables, wanted, backend=backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moves = plan_fetch_(both[1], wanted)
    for _ in range(6):
        wanted.copy_(some_pages(256, 500, generator))
        graph.replay()
        assert_same(*both, [plan_fetch_(both[0], wanted, backend="reference"), moves])
