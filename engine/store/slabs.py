"""Records of whole pages in main memory, in slabs that are taken as a context grows.

A slab holds a run of pages of all layers. A GPU reads slabs by itself where their memory is pinned;
where the system refuses that they stay pageable, and copies go by way of the host. Where main
memory has no room for all and the device has, the first slabs are there, and taken at once.
"""

import contextlib
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.mapping import AddressRange

# Slabs taken before they are needed: pinning takes the system its time.
AHEAD = 4


class Slabs:
    """The slabs of all layers.

    Args:
        layout: of the pages.
        capacity: pages a layer.
        slab_pages: pages of a slab.
        absent: slabs [first, last) that memory has no room for.
        device: what reads them.
        on_device: so many of the first slabs are there.

    Attributes:
        bases: int64 [layers, slabs] on the device, the address of each layer's part of a slab; 0
            where the device cannot read it.
        unreadable: bool [slabs] on the host, True where it is 0.
        refused: what the system said when it refused to pin memory, or empty.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity: int,
        slab_pages: int,
        absent: tuple[int, int],
        device: torch.device,
        on_device: int = 0,
    ) -> None:
        self._layout, self.slab_pages, self._device = layout, slab_pages, device
        count = -(-capacity // slab_pages)
        self._absent = range(*absent)
        self._slabs: list[torch.Tensor | None] = [None] * count
        self._ahead: dict[int, Future[tuple[torch.Tensor, bool]]] = {}
        self.bases = torch.zeros(layout.num_layers, count, dtype=torch.int64, device=device)
        self.unreadable = torch.ones(count, dtype=torch.bool)
        self.refused = ""
        self._pinned: list[int] = []
        self._thread = ThreadPoolExecutor(1, "hip-slabs")
        weakref.finalize(self, _release, self._thread, self._pinned)
        for index in range(on_device):
            shape = (layout.num_layers, slab_pages, layout.page_bytes)
            self._install(index, torch.zeros(shape, dtype=torch.uint8, device=device), True)

    def __len__(self) -> int:
        return len(self._slabs)

    @property
    def slab_bytes(self) -> int:
        """Of one slab, all layers."""
        return self._layout.num_layers * self.slab_pages * self._layout.page_bytes

    @property
    def all_readable(self) -> bool:
        """The device reads every page by itself."""
        return not self._absent and not self.refused

    def holds(self, page: int) -> bool:
        """Memory has room for a page."""
        return page // self.slab_pages not in self._absent

    def grow(self, end: int) -> None:
        """Take the slabs of pages before `end`, and begin with those behind them."""
        last = -(-end // self.slab_pages)
        for index in range(min(last + AHEAD, len(self._slabs))):
            if self._slabs[index] is None and index not in self._absent:
                if index not in self._ahead:
                    self._ahead[index] = self._thread.submit(self._new)
                if index < last:
                    self._install(index, *self._ahead.pop(index).result())

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Pages [first, last) cut where slabs end."""
        while first < last:
            end = min(last, (first // self.slab_pages + 1) * self.slab_pages)
            yield first, end
            first = end

    def rows(self, layer: int, first: int, last: int) -> torch.Tensor:
        """Records of pages [first, last) of one slab, uint8 [n, page_bytes]: a view."""
        index, offset = divmod(first, self.slab_pages)
        slab = self._slabs[index]
        if slab is None:
            raise ValueError(f"page {first} of layer {layer} is not in memory")
        return slab[layer, offset : offset + last - first]

    def _new(self) -> tuple[torch.Tensor, bool]:
        """A slab of zeros, uint8 [layers, slab_pages, page_bytes], and whether it is pinned."""
        shape = (self._layout.num_layers, self.slab_pages, self._layout.page_bytes)
        slab = AddressRange(self.slab_bytes).tensor(torch.uint8, shape)
        if not pins(self._device) or self.refused:
            return slab, not self.refused
        self.refused = pin(slab, self._device)
        if not self.refused:
            self._pinned.append(slab.data_ptr())
        return slab, not self.refused

    def _install(self, index: int, slab: torch.Tensor, readable: bool) -> None:
        self._slabs[index] = slab
        if readable:
            self.unreadable[index] = False
            for layer in range(self._layout.num_layers):
                self.bases[layer, index].fill_(slab[layer].data_ptr())


def pins(device: torch.device) -> bool:
    """The device reads no other main memory than what is pinned."""
    return device.type == "cuda"


def pin(memory: torch.Tensor, device: torch.device) -> str:
    """Pin memory so that the device reads it; what the system says if it refuses, else empty.

    RLIMIT_MEMLOCK has no say: that is for mlock, and for drivers that count what they pin. NVIDIA's
    pins by the kernel's get_user_pages alone and counts nothing (os_lock_user_pages in
    kernel-open/nvidia/os-mlock.c of its open kernel modules), so a plan need not read it. What
    refuses is a machine, a container or WSL without so much free memory.
    """
    # In whichever thread this runs: a device without a number is the current one.
    with torch.cuda.device(device):
        error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) == 0:
        return ""
    # The error stays with this thread until somebody meets it.
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device=device).fill_(0)
    return f"error {int(error)}"


def _release(thread: ThreadPoolExecutor, pinned: list[int]) -> None:
    thread.shutdown(wait=True, cancel_futures=True)
    for address in pinned:
        torch.cuda.cudart().cudaHostUnregister(address)
