"""Where the bytes of keys, values and summaries lie: on the device, in main memory, in files."""

from dataclasses import dataclass

from hipcli.engine.store.layout import PAGE_TOKENS, num_pages
from hipcli.engine.store.pages import KVStore
from hipcli.engine.store.tiered_store import TieredStore


@dataclass(frozen=True, slots=True)
class Shares:
    """Bytes in each place. What lies in two of them counts in both.

    Args:
        device_bytes: on the GPU.
        host_bytes: in main memory that is no file's.
        disk_bytes: in a session's files, or in a file for what memory does not hold.
    """

    device_bytes: int
    host_bytes: int
    disk_bytes: int


def shares_of(store: KVStore, tokens: int, saved_tokens: int, *, on_gpu: bool) -> Shares:
    """The shares of a context.

    Args:
        store: where it is.
        tokens: of it that are there.
        saved_tokens: of these that are in a session's files.
        on_gpu: the store is a GPU's; a CPU maps a session's files, and takes no memory for them
            that would not be the system's cache.
    """
    layout = store.layout
    saved, all_bytes = layout.num_bytes(saved_tokens), layout.num_bytes(tokens)
    if isinstance(store, TieredStore):
        return _of_tiers(store, tokens, saved)
    if on_gpu:
        return Shares(all_bytes, 0, saved)
    if saved_tokens or not getattr(store, "overflow_bytes", 0):
        return Shares(0, max(all_bytes - saved, 0), saved)
    summaries = num_pages(tokens) * layout.num_layers * layout.summary_bytes
    return Shares(0, summaries, all_bytes - summaries)


def _of_tiers(store: TieredStore, tokens: int, saved: int) -> Shares:
    layout, plan, pages = store.layout, store.plan, num_pages(tokens)
    first, last = (slab * plan.slab_pages for slab in plan.absent)
    away = max(min(last, pages) - first, 0)
    # The page that is not full is on the device alone, and so are the first ones by some plans.
    full = tokens // PAGE_TOKENS
    stay = min(plan.device_slabs * plan.slab_pages, full)
    held = max(full - stay - away, 0)
    page, summary = (layout.num_layers * x for x in (layout.page_bytes, layout.summary_bytes))
    device = (min(plan.slots, pages) + stay) * page + pages * summary
    return Shares(device, held * page, saved or away * page)
