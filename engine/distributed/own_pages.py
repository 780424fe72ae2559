"""The pages of one rank: a store in which pages of other ranks have no place.

Keys, values and summaries of those take no memory; `memory.py` tells where the own ones lie.
Positions of tokens are those of the whole context, but for what is written, which counts the own
pages alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hipcli.engine.device import check_kv_fits
from hipcli.engine.distributed.memory import ShardHostMemory, ShardMemory
from hipcli.engine.distributed.placement import Placement
from hipcli.engine.distributed.slots import OwnSlots
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.memory import paged_kv
from hipcli.engine.store.pages import KVStore
from hipcli.kernels.types import PagedKV, PageIndex

# Ranges of pages of which each rank's are kept: more than the layers of a step ask for.
KEPT_RANGES = 32


@dataclass(frozen=True, slots=True)
class _Own:
    """Those of the tokens [start, end) that are on own pages.

    Args:
        start, end: of all.
        runs: where they stand, as `OwnSlots.written` has it.
        which: of all, int64 [n] on the device; None for each of them.
    """

    start: int
    end: int
    runs: list[tuple[int, int]]
    which: torch.Tensor | None


class OwnPages(KVStore):
    """See the module.

    Args:
        layout, capacity_tokens, backend, device: as of a `KVStore`.
        placement: which pages are this rank's.

    Attributes:
        kv: per layer keys and values; the page table has -1 for pages of other ranks.
        slots: where own pages stand.

    Raises:
        DoesNotFitError: the device has no room for the own pages.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        backend: str,
        device: torch.device,
        placement: Placement,
    ) -> None:
        self.placement = placement
        # A session's files are mapped on a CPU, and a mapping has all pages in their order.
        self.slots = OwnSlots(placement, fixed=backend == "cpu")
        check_kv_fits(layout, self.slots.count * PAGE_TOKENS, device)
        super().__init__(layout, self.slots.count * PAGE_TOKENS, backend, device)
        self.capacity_tokens = num_pages(capacity_tokens) * PAGE_TOKENS
        self._place()

    def _new_memory(self, capacity: int) -> ShardHostMemory | ShardMemory:
        if self.slots.fixed:
            return ShardHostMemory(self.layout, self.device, self.slots, self.limit)
        return ShardMemory(self.layout, self.device, self.slots)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory, or on a CPU of addresses, that this rank has for pages and summaries."""
        tensors = (*self._memory.records, *self._memory.summaries)
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def _place(self) -> None:
        """Page tables as pages and slots are now."""
        self._slot_of = self.slots.of.to(self.device)
        table = self._slot_of.int()
        self.kv = [replace(kv, page_table=table) for kv in self._written]
        self._all_placed = table.clamp(min=0)
        self._own = _Own(0, 0, [], None)
        self._between: dict[tuple[int, int, int], torch.Tensor] = {}

    def scored_kv(self, layer: int) -> PagedKV:
        """`kv` with a slot, if a wrong one, for every page; for operators that are told which ones
        to read."""
        return replace(self.kv[layer], page_table=self._all_placed)

    def own_between(self, first: int, last: int, rank: int | None = None) -> torch.Tensor:
        """Pages of [first, last) that are this rank's or another's, int64 ascending on the device;
        kept for the layers that ask next, which wait for no copy then."""
        key = first, last, self.placement.rank if rank is None else rank
        if key not in self._between:
            if len(self._between) >= KEPT_RANGES:
                self._between.clear()
            self._between[key] = self.placement.own(*key).to(self.device)
        return self._between[key]

    def own_kv(self, layer: int, tokens: int) -> tuple[PagedKV, torch.Tensor, int]:
        """This rank's pages of the first `tokens` as a sequence of their own.

        Returns:
            keys and values, the pages int64 [n] ascending, and how many tokens they hold: only the
            last one may be half filled.
        """
        last = num_pages(tokens)
        pages = self.own_between(0, last)
        held = len(pages) * PAGE_TOKENS
        if last and int(self.placement.owners[last - 1]) == self.placement.rank:
            held -= last * PAGE_TOKENS - tokens
        kv = self.kv[layer]
        return replace(kv, page_table=kv.page_table[pages]), pages, held

    def rows_of_own(
        self, layer: int, pages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Some own pages, int64 [n] on the device, as `KVStore.picked` gives them."""
        slots, scales = self._slot_of[pages], self.scales[layer]
        return self.pages[layer][slots], None if scales is None else scales[slots]

    def owned(self, pages: torch.Tensor) -> torch.Tensor:
        """Which of these pages (-1 for none) are this rank's, bool of the same shape."""
        slots = self._slot_of if pages.device == self._slot_of.device else self.slots.of
        return (pages >= 0) & (slots[pages.clamp(min=0).long()] >= 0)

    def fits_page(self, start: int, tokens: int) -> bool:
        """Never: whose page it is has to be asked."""
        return False

    def append(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write those of the tokens [start, start + T) that are on own pages."""
        own = self._on_own(start, start + len(k))
        if own.which is not None and own.runs:
            k, v = k[own.which], v[own.which]
        self._append_runs(layer, own.runs, k, v)

    def append_own(
        self, layer: int, start: int, end: int, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write those of the tokens [start, end) that are on own pages.

        Args:
            k, v: of these alone, [T, num_kv_heads, head_dim].
        """
        self._append_runs(layer, self._on_own(start, end).runs, k, v)

    def _on_own(self, start: int, end: int) -> _Own:
        """Kept for the layers that ask next."""
        if (self._own.start, self._own.end) != (start, end):
            if end > self.capacity_tokens:
                raise ValueError(f"{end} tokens exceed the store's capacity {self.capacity_tokens}")
            runs = self.slots.written(start, end)
            which = None
            if sum(last - first for first, last in runs) < end - start:
                which = self.placement.tokens(start, end)[self.placement.rank].to(self.device)
            self._own = _Own(start, end, runs, which)
        return self._own

    def _append_runs(
        self, layer: int, runs: Sequence[tuple[int, int]], k: torch.Tensor, v: torch.Tensor
    ) -> None:
        at = 0
        for first, last in runs:
            piece = slice(at, at + last - first)
            super().append(layer, first, k[piece], v[piece])
            at += last - first

    def _hand(self, page: int, to: int) -> None:
        """Give a page to another rank, whatever is in it."""
        before, rank = int(self.placement.owners[page]), self.placement.rank
        if before == to:
            return
        if before == rank:
            self.slots.leave([page])
        if to == rank:
            self._grow(self.slots.short_of(1))
            self.slots.take([page])
        self.placement.move([page], to)
        self._place()

    def _grow(self, more: int) -> None:
        """So many slots more, layer by layer: one of them is there twice for a moment."""
        if not more:
            return
        layer_pages = self.slots.count // self.layout.num_layers + 1
        check_kv_fits(self.layout, (more + layer_pages) * PAGE_TOKENS, self.device)
        assert isinstance(self._memory, ShardMemory)
        table = torch.arange(self.slots.count + more, dtype=torch.int32, device=self.device)
        for layer in range(self.layout.num_layers):
            # Nothing may hold on to a layer as it was, or all of them would be there twice.
            self._memory.grow(layer, more)
            kv = paged_kv(self.pages[layer], self.scales[layer], table)
            self._written[layer] = kv
            self.kv[layer] = replace(kv, page_table=self.kv[layer].page_table)
            summaries = self._memory.summaries[layer]
            self._index[layer] = PageIndex("bounds", summaries, None, PAGE_TOKENS)
        self.slots.grown(more)
        self._place()
