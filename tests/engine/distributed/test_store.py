"""One rank's part of a store."""

import torch

from hipcli.engine.distributed.placement import Placement
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.memory import DeviceMemory


class Slow(DeviceMemory):
    """Pages that are in no file until somebody waits for them."""

    def __init__(self, layout: KVLayout) -> None:
        super().__init__(layout, 4, torch.device("cpu"))
        self.under_way: list[tuple[int, int]] = []
        self.arrived: list[tuple[int, int]] = []

    def save(self, first: int, last: int) -> int:
        self.under_way.append((first, last))
        return 0

    def flush(self) -> None:
        self.arrived += self.under_way
        self.under_way = []


def test_what_is_said_to_be_saved_is_in_the_files():
    layout = KVLayout(1, 1, 16, torch.float32)
    placement = Placement.of([0, 1, 0, 0], 0, 2)
    store = ShardStore(layout, 256, "cpu", torch.device("cpu"), placement)
    store._memory = memory = Slow(layout)
    assert store.save_own(0, 230) == 230
    assert memory.arrived == [(0, 4)] and not memory.under_way
