"""Where a rank's own pages lie, and how they come from a session's files and go back to them.

On a GPU memory is taken for own pages alone, a slot each. On a CPU a session's files lie under the
pages as they lie under a whole store's: pages of other ranks are never written, and cost addresses
and nothing else.
"""

from collections.abc import Iterator, Sequence

import torch

from hipcli.engine.distributed.slots import OwnSlots
from hipcli.engine.store.host import HostMemory
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.memory import DeviceMemory, contents, scales_of


class ShardMemory(DeviceMemory):
    """Slots as tensors on a device.

    Args:
        layout: shape of a page and of its summary.
        device: where.
        slots: which page stands where.
    """

    def __init__(self, layout: KVLayout, device: torch.device, slots: OwnSlots) -> None:
        super().__init__(layout, slots.count, device)
        self._slots = slots

    def grow(self, layer: int, more: int) -> None:
        """So many rows more of a layer."""
        records = _longer(self.records[layer], 0, more)
        self.summaries[layer] = _longer(self.summaries[layer], 1, more)
        self.records[layer] = records
        self.pages[layer] = contents(records, self._layout)
        self.scales[layer] = scales_of(records, self._layout)

    def _runs(self, first: int, last: int) -> Iterator[tuple[Sequence[int], int]]:
        yield from self._slots.runs(self._slots.placement.own(first, last))


class ShardHostMemory(HostMemory):
    """Address ranges for all pages, of which the own ones are written.

    Args:
        layout, device, limit: as of a `HostMemory`.
        slots: which pages are own ones.
    """

    def __init__(
        self, layout: KVLayout, device: torch.device, slots: OwnSlots, limit: HostLimit | None
    ) -> None:
        super().__init__(layout, slots.count, device, limit)
        self._slots = slots

    def save(self, first: int, last: int) -> int:
        """As `HostMemory.save`: the checksums of own pages alone."""
        for pages, _ in self._slots.runs(self._slots.placement.own(first, last)):
            super().save(pages[0], pages[-1] + 1)
        return last


def _longer(x: torch.Tensor, dim: int, more: int) -> torch.Tensor:
    """A copy of x with so many zeros more in a dimension."""
    shape = list(x.shape)
    shape[dim] = more
    return torch.cat((x, x.new_zeros(shape)), dim)
