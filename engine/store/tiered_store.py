"""A store whose pages do not all fit the device: `KVStore` with slots, slabs and a disk behind it.

A pass says what it is about to append and what it attends anyway (`reserve`), and asks for the rest
before it attends it (`fetch`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.memory import contents, paged_kv, scales_of
from hipcli.engine.store.pages import KVStore
from hipcli.engine.store.slots import Moves
from hipcli.engine.store.tail import Tail
from hipcli.engine.store.tiered import TieredMemory
from hipcli.engine.store.tiers import TierPlan, Traffic
from hipcli.kernels.types import QUARTERS, PagedKV

# Slots that no fetch takes: a page that begins later never takes those of the last fetch.
SLACK_SLOTS = 2
# Values come in quarters of pages.
QUARTER_TOKENS = PAGE_TOKENS // QUARTERS


class TieredStore(KVStore):
    """See the module.

    Args:
        layout, capacity_tokens, backend, device: as of a `KVStore`.
        plan: what lies where.
    """

    _memory: TieredMemory

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        plan: TierPlan,
        backend: str = "reference",
        device: torch.device | str = "cpu",
    ) -> None:
        self.plan = plan
        super().__init__(layout, capacity_tokens, backend, device, plan.limit)
        self.tiered = True
        # Pages that are known to be in slots: the sinks, and a run up to the end.
        self._sinks, self._near = 0, range(0)
        self._reserved = range(0)
        self._heads = torch.arange(layout.num_kv_heads, device=self.device)

    def _new_memory(self, capacity: int) -> TieredMemory:
        return TieredMemory(self.layout, capacity, self.device, self.plan, self.backend)

    def _page_tables(self, capacity: int) -> Sequence[torch.Tensor]:
        return list(self._memory.slots.tables)

    @property
    def room(self) -> int:
        return self.plan.slots - self._sinks - len(self._near) - SLACK_SLOTS

    @property
    def fetches_in_graphs(self) -> bool:
        return self._memory.in_graphs

    @property
    def traffic(self) -> Traffic:
        return self._memory.traffic

    def reserve(self, start: int, end: int, window_start: int, sink_tokens: int) -> None:
        """Before a pass appends tokens [start, end): what it attends without asking for it.

        Afterwards the sinks and everything from `window_start` to `end` have slots, which they
        keep until the next call, and what was written before `start` stands in them. Does not
        wait for the device where pages follow one another; a CUDA graph cannot hold it.

        Args:
            start, end: of the pass.
            window_start: first token that is attended without being fetched; 0 for all.
            sink_tokens: first tokens that stay too.

        Raises:
            ValueError: they do not fit the slots.
        """
        memory, written = self._memory, num_pages(start)
        first, last = window_start // PAGE_TOKENS, num_pages(end)
        sinks = min(num_pages(sink_tokens), first)
        if sinks + last - first > self.plan.slots - SLACK_SLOTS:
            raise ValueError(
                f"{sinks + last - first} pages of sinks and window do not fit the"
                f" {self.plan.slots} slots of the device"
            )
        for layer in range(self.layout.num_layers):
            memory.write_through(layer, start // PAGE_TOKENS)
        memory.settle()
        memory.slots.keep(sinks, first)
        missing = []
        if sinks > self._sinks:
            missing.append(range(self._sinks, sinks))
        if first < self._near.start or written > self._near.stop or not self._near:
            missing.append(range(first, last))
        elif last > self._near.stop:
            missing.append(range(self._near.stop, last))
        if missing:
            moves = memory.slots.take_in_all(missing)
            if any(run.start < written for run in missing):
                self._bring_all(moves, written)
        if end % PAGE_TOKENS and start <= end - end % PAGE_TOKENS:
            # It may go to a file before it is full, and with it whatever the slot held.
            memory.clear(last - 1)
        memory.rewrite_from(start // PAGE_TOKENS)
        self._sinks, self._near = sinks, range(first, last)
        self._reserved = range(start, end)

    def _bring_all(self, moves: Moves, written: int) -> None:
        """Fetch what is there of the pages that were given slots in all layers."""
        old = moves.pages < written
        pages, slots = (x.masked_fill(~old, -1) for x in (moves.pages, moves.slots))
        layers = self.layout.num_layers
        for layer, move in enumerate(zip(pages.chunk(layers), slots.chunk(layers), strict=True)):
            self._memory.fetch(layer, Moves(*move))

    def fetch(self, layer: int, pages: torch.Tensor, *, keys_only: bool = False) -> None:
        """Bring pages to the device before they are attended.

        They stay until the next fetch of the layer. A CUDA graph can hold this where
        `fetches_in_graphs`.

        Args:
            layer: which layer.
            pages: int32 [..., num_kv_heads, n], -1 for none, maybe repeated; of each KV head at
                most `room` different ones that `reserve` does not keep anyway.
            keys_only: they are scored at first; what is attended of them then needs
                `fetch_values`. For stores where `fetches_in_graphs`, others bring values too.
        """
        heads, memory = self.layout.num_kv_heads, self._memory
        wanted = pages.movedim(-2, 0).reshape(heads, -1)
        if wanted.shape[1]:
            keys_only = keys_only and memory.slabs.all_readable
            moves = memory.slots.take(layer, wanted, keys_only=keys_only)
            memory.fetch(layer, moves, keys_only=keys_only)

    def fetch_values(self, layer: int, blocks: torch.Tensor, block_size_k: int) -> None:
        """Bring the values of blocks whose pages were fetched, as far as they are not there.

        A CUDA graph can hold this where `fetches_in_graphs`.

        Args:
            layer: which layer.
            blocks: int32 [..., num_kv_heads, n] in units of `block_size_k` tokens, -1 for none.
            block_size_k: tokens; a power of two up to a page.
        """
        listed = blocks.movedim(-2, 0).reshape(self.layout.num_kv_heads, -1)
        if listed.shape[1]:
            quarters = _quarters(listed, block_size_k)
            moves = self._memory.slots.take_values(layer, quarters)
            self._memory.fetch_values(layer, moves)

    def written_through(self, layer: int, start: int, end: int) -> None:
        """Once a layer has tokens [start, end): full pages go where they stay."""
        self._memory.write_through(layer, end // PAGE_TOKENS)

    def key_pieces(
        self, layer: int, first_page: int, last_page: int, *, values: bool = True
    ) -> Iterator[tuple[int, PagedKV]]:
        for first, last, records in self._memory.pieces(layer, first_page, last_page, values):
            table = torch.arange(last - first, dtype=torch.int32, device=self.device)
            yield first, paged_kv(*self._views(records), table)

    def _views(self, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return contents(records, self.layout), scales_of(records, self.layout)

    def rows(self, layer: int, which: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        first, last, _ = which.indices(self.plan.capacity_pages)
        pieces = [x.clone() for *_, x in self._memory.pieces(layer, first, last)]
        return self._views(torch.cat(pieces))

    def picked(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._views(self._memory.picked(layer, pages))

    def put(self, layer: int, first: int, pages: torch.Tensor, scales: torch.Tensor | None) -> None:
        self._memory.put(layer, first, pages, scales)

    def empty(self, capacity_tokens: int) -> "TieredStore":
        capacity = num_pages(capacity_tokens)
        # What has no room in memory now has none for a second time.
        full = self.plan.disk_pages or self.plan.device_slabs
        disk_pages = capacity if full else 0
        plan = replace(self.plan, capacity_pages=capacity, disk_pages=disk_pages, device_slabs=0)
        return TieredStore(self.layout, capacity_tokens, plan, self.backend, self.device)

    @property
    def unpinned(self) -> str:
        """What the system said when it refused to pin main memory, or empty."""
        return self._memory.slabs.refused

    def fits_page(self, start: int, tokens: int) -> bool:
        """Never: each KV head's page may be in another slot."""
        return False

    def append(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if k.shape[0] and not (start in self._reserved and start + len(k) <= self._reserved.stop):
            raise ValueError(f"tokens {start} to {start + len(k)} were not reserved")
        super().append(layer, start, k, v)

    def _copy(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        table, heads, position = self.kv[layer].page_table, self._heads, start
        while position < start + len(k):
            page, offset = divmod(position, PAGE_TOKENS)
            left = start + len(k) - position
            whole = offset == 0 and left >= PAGE_TOKENS
            count = left // PAGE_TOKENS * PAGE_TOKENS if whole else min(PAGE_TOKENS - offset, left)
            source = slice(position - start, position - start + count)
            for part, new in enumerate((k, v)):
                target, rows = self.pages[layer][:, part], new[source]
                if whole:
                    slots = table[:, page : page + count // PAGE_TOKENS].long()
                    rows = rows.unflatten(0, (-1, PAGE_TOKENS)).permute(2, 0, 1, 3)
                    target[slots, heads[:, None]] = rows
                else:
                    slots = table[:, page].long()
                    target[slots, heads, offset : offset + count] = rows.transpose(0, 1)
            position += count

    def append_at(
        self,
        layer: int,
        rows: torch.Tensor,
        seqlen_k: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """As `KVStore.append_at`; `rows` are found in the layer's table instead."""
        if self.layout.quantised:
            self._quantise(layer, seqlen_k, k, v)
            return
        position = (seqlen_k - 1).long()
        table = self.kv[layer].page_table
        slots = table.index_select(1, position // PAGE_TOKENS).flatten().long()
        # [2, num_kv_heads]: the place of the slot's keys and values among all rows of a layer.
        parts = torch.arange(2, device=self.device).unsqueeze(1)
        places = (slots * 2 + parts) * self.layout.num_kv_heads + self._heads
        places = places.flatten() * PAGE_TOKENS + position % PAGE_TOKENS
        super().append_at(layer, places, seqlen_k, k, v)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self._forget(num_pages(self.length))

    def _forget(self, page: int) -> None:
        """Pages from this one on are gone."""
        self._memory.rewrite_from(page)
        self._memory.slots.forget(page)
        self._near = range(self._near.start, max(min(self._near.stop, page), self._near.start))
        self._reserved = range(0)

    def tail(self) -> Tail:
        page = max(self.length - 1, 0) // PAGE_TOKENS
        found = [self.rows(layer, slice(page, page + 1)) for layer in range(len(self.pages))]
        scales = [None if scale is None else scale[0].clone() for _, scale in found]
        companion = None if self.companion is None else self.companion.copy()
        return Tail(self.length, [pages[0].clone() for pages, _ in found], scales, companion)

    def rewind(self, tail: Tail) -> None:
        page = max(tail.length - 1, 0) // PAGE_TOKENS
        self.companion = None if tail.companion is None else tail.companion.copy()
        for layer in range(self.layout.num_layers):
            self._memory.write_through(layer, page)
        self.truncate(tail.length)
        if tail.length % PAGE_TOKENS:
            # To where it comes from when the next pass reserves it.
            self._forget(page)
            for layer, (content, scales) in enumerate(zip(tail.pages, tail.scales, strict=True)):
                put = None if scales is None else scales[None]
                self._memory.put(layer, page, content[None], put)


def _quarters(blocks: torch.Tensor, block_size_k: int) -> torch.Tensor:
    """The quarters of pages that blocks [rows, n] lie in, int32 [rows, m]; -1 for each of none."""
    if block_size_k == QUARTER_TOKENS:
        return blocks
    if block_size_k < QUARTER_TOKENS:
        return torch.div(blocks, QUARTER_TOKENS // block_size_k, rounding_mode="floor")
    each = block_size_k // QUARTER_TOKENS
    offsets = torch.arange(each, dtype=torch.int32, device=blocks.device)
    quarters = blocks.unsqueeze(-1) * each + offsets
    return quarters.masked_fill(blocks.unsqueeze(-1) < 0, -1).flatten(1)
