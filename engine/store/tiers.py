"""How the keys and values of one context are shared out to device, main memory and disk."""

from dataclasses import dataclass, replace

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.store.layout import KVLayout, num_pages
from hipcli.engine.store.limits import HostLimit

# Pages of a slab: of an 8B model in fp8 268 MB, all layers together.
SLAB_PAGES = 64
# Pages of a piece of a layer that passes through the device as a whole.
PIECE_PAGES = 256
# Pieces that are on the device at once: the one that is read, and the one that comes.
PIECES = 2


# Slots, in times of the least, that are worth more than keeping pages from the disk.
ENOUGH_SLOTS = 2


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Where the pages of a context lie.

    Args:
        slots: pages of each layer and KV head that the device holds at once.
        capacity_pages: of each layer.
        slab_pages: pages of a slab in main memory.
        disk_pages: of each layer, that lie on the disk alone: whole slabs.
        limit: of main memory, with the folder for a file of them if no session has them.
        least_slots: fewer than these no pass can do with.
        device_slabs: the first slabs are on the device, beside the slots: for main memory that has
            no room for all. Unlike what stands in slots they are nowhere else.
    """

    slots: int
    capacity_pages: int
    slab_pages: int = SLAB_PAGES
    disk_pages: int = 0
    limit: HostLimit | None = None
    least_slots: int = 1
    device_slabs: int = 0

    @property
    def absent(self) -> tuple[int, int]:
        """The slabs [first, last) that are on the disk. The last two are not: there is what
        follows the context, which no session holds."""
        slabs = -(-self.capacity_pages // self.slab_pages)
        last = max(slabs - 2, 0)
        return max(last - self.disk_pages // self.slab_pages, 0), last

    def describe(self, layout: KVLayout) -> str:
        """One line for people."""
        page = layout.num_layers * layout.page_bytes
        device = device_bytes(layout, self.capacity_pages, self.slots)
        held = self.device_slabs * self.slab_pages
        memory = (self.capacity_pages - self.disk_pages - held) * page
        there = f"{self.slots:,} pages of 64 tokens at once"
        if held:
            there += f", and the first {held:,} for good"
        parts = [
            f"{_gib(device + held * page)} on the GPU ({there})",
            f"{_gib(memory)} in main memory",
        ]
        if self.disk_pages:
            parts.append(f"{_gib(self.disk_pages * page)} on the disk")
        return "keys and values: " + ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What there is for the keys and values of a context, and what they must have.

    Args:
        device_bytes: of the device, summaries and tables included.
        host: of main memory, pages beyond it lie on the disk; None where the system does not say.
        host_bytes: for pages, of what `host` allows.
        least_slots: pages of a KV head that a pass needs on the device at once.
    """

    device_bytes: int
    host: HostLimit | None
    host_bytes: int
    least_slots: int


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

    def describe(self) -> str:
        """One line for people."""
        hits = 1 - self.missed_pages / max(self.wanted_pages, 1)
        return (
            f"pages fetched: {self.wanted_pages:,} wanted, {hits:.1%} of them on the GPU;"
            f" {_gib(self.bytes_in)} to it, {_gib(self.bytes_out)} from it"
        )


def device_bytes(layout: KVLayout, capacity_pages: int, slots: int) -> int:
    """Bytes of a device for so many slots, and for summaries and tables of all pages."""
    pages = layout.num_layers * slots * layout.page_bytes
    summaries = layout.num_layers * capacity_pages * layout.summary_bytes
    # A table of pages; of each slot an owner, a stamp, and which values it has.
    tables = layout.num_layers * layout.num_kv_heads * 4 * (capacity_pages + 3 * slots)
    return pages + summaries + tables + PIECES * PIECE_PAGES * layout.page_bytes


def plan_tiers(layout: KVLayout, capacity_tokens: int, limits: TierLimits) -> TierPlan | None:
    """The plan for a context: as many pages on the device as it takes, then in main memory.

    What main memory has no room for stays on the device for good where that leaves enough slots,
    else it lies on the disk, which graphs cannot read.

    Returns:
        None where everything fits the device.

    Raises:
        DoesNotFitError: not even the least does, with the flags that would help.
    """
    if layout.num_bytes(capacity_tokens) <= limits.device_bytes:
        return None
    capacity = num_pages(capacity_tokens)
    fixed = device_bytes(layout, capacity, 0)
    slots = (limits.device_bytes - fixed) // (device_bytes(layout, capacity, 1) - fixed)
    if slots < limits.least_slots:
        raise DoesNotFitError(
            f"of the keys and values of {capacity_tokens:,} tokens at least"
            f" {_gib(device_bytes(layout, capacity, limits.least_slots))} must be on the GPU, and"
            f" there is room for {_gib(max(limits.device_bytes, 0))}",
            f"raise --gpu-memory, {_halved(layout)}use a smaller model, or cut the text with"
            " --context-limit N --fit middle",
        )
    slab_pages = min(SLAB_PAGES, capacity)
    slabs, slab_bytes = -(-capacity // slab_pages), layout.num_layers * slab_pages
    slab_bytes *= layout.page_bytes
    held = min(limits.host_bytes // slab_bytes, slabs)
    if held < min(slabs, 2):
        raise DoesNotFitError(
            f"keys and values of {capacity_tokens:,} tokens need {_gib(2 * slab_bytes)} of main"
            f" memory beside the GPU, and there is room for {_gib(max(limits.host_bytes, 0))}",
            "raise --host-memory, or use a smaller model",
        )
    slots, away = min(slots, capacity), slabs - held
    plan = TierPlan(slots, capacity, slab_pages, 0, limits.host, limits.least_slots)
    # A slab takes as much of the device as so many slots.
    left = slots - away * slab_pages
    if left >= ENOUGH_SLOTS * limits.least_slots:
        return replace(plan, slots=left, device_slabs=away)
    return replace(plan, disk_pages=away * slab_pages)


def _halved(layout: KVLayout) -> str:
    return "" if layout.quantised else "halve keys and values with --kv-dtype fp8_e4m3, "


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
