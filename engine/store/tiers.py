"""How the keys and values of one context are shared out to device, main memory and disk."""

from dataclasses import dataclass
from pathlib import Path

# Pages of a slab: of an 8B model in fp8 268 MB, all layers together.
SLAB_PAGES = 64


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Where the pages of a context lie.

    Args:
        slots: pages of each layer and KV head that the device holds at once.
        capacity_pages: of each layer.
        slab_pages: pages of a slab in main memory.
        disk_pages: of each layer, that lie on the disk alone: whole slabs.
        folder: where a file for them lies if no session has them.
    """

    slots: int
    capacity_pages: int
    slab_pages: int = SLAB_PAGES
    disk_pages: int = 0
    folder: Path = Path()

    @property
    def absent(self) -> tuple[int, int]:
        """The slabs [first, last) that are on the disk. The last two are not: there is what
        follows the context, which no session holds."""
        slabs = -(-self.capacity_pages // self.slab_pages)
        last = max(slabs - 2, 0)
        return max(last - self.disk_pages // self.slab_pages, 0), last


@dataclass(frozen=True, slots=True)
class Traffic:
    """What moved between the tiers.

    Args:
        wanted_pages: pages of single KV heads that fetches asked for.
        missed_pages: those of them that were not on the device.
        bytes_in: to the device, for fetches and for what reads every key.
        bytes_out: from the device.
    """

    wanted_pages: int = 0
    missed_pages: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
