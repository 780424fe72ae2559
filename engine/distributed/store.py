"""One rank's part of a context, with its part of a session and of what all ranks do together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hipcli.engine.distributed.group import Group, as_bytes, from_bytes
from hipcli.engine.distributed.own_pages import OwnPages
from hipcli.engine.distributed.placement import Placement
from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.memory import contents, scales_of
from hipcli.engine.store.tail import Tail


@dataclass(frozen=True, slots=True)
class ShardTail(Tail):
    """The end of a store as one rank has it.

    Args:
        owner: the rank that has the last page; the others' tails have no pages.
    """

    owner: int = 0


class ShardStore(OwnPages):
    """See the module.

    What a session's files give is compared with its checksums on its owner. A page that is not
    what was written is remembered in `trouble` and attended all the same: the pass goes on on all
    ranks, and fails at its end on all of them.

    Args:
        layout, capacity_tokens, backend, device, placement: as of `OwnPages`.

    Attributes:
        trouble: what was found damaged since it was last asked for.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        backend: str,
        device: torch.device,
        placement: Placement,
    ) -> None:
        super().__init__(layout, capacity_tokens, backend, device, placement)
        self.trouble: DamagedSessionError | None = None

    def summaries(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Summaries of some own pages, [num_kv_heads, n, 2, head_dim]."""
        self._compare(SUMMARY, layer, pages)
        return self._index[layer].summaries[:, self._slot_of[pages]]

    def check_keys(self, layer: int, pages: torch.Tensor | None = None) -> None:
        """As `KVStore.check_keys`, of own pages; None for all."""
        self._compare(KEYS, layer, self._all_own() if pages is None else pages.flatten())

    def check_attended(
        self,
        layer: int,
        blocks: torch.Tensor | None,
        block_size_k: int,
        sink_tokens: int,
        window_start: int,
    ) -> None:
        """As `KVStore.check_attended`, of own pages."""
        if self._checks is None or self.backend != "cpu" or self._checks.settled(layer):
            return
        pages = self._all_own()
        if window_start > 0:
            near = (pages < num_pages(sink_tokens)) | (pages >= window_start // PAGE_TOKENS)
            parts = [pages[near]]
            if blocks is not None:
                chosen = blocks.flatten().long() * block_size_k // PAGE_TOKENS
                parts.append(chosen[self.owned(chosen)])
            pages = torch.cat(parts)
        self._compare(KEYS, layer, pages)
        self._compare(VALUES, layer, pages)

    def _all_own(self) -> torch.Tensor:
        return self.placement.own(0, num_pages(self.length))

    def _compare(self, part: int, layer: int, pages: torch.Tensor) -> None:
        if self._checks is None or self.backend != "cpu":
            return
        try:
            self._memory.compare(part, layer, pages[self.owned(pages)])
        except DamagedSessionError as error:
            self.trouble = self.trouble or error

    def map_own(
        self, folder: Path, file_tokens: int, tokens: int, seed: int, *, shared: bool
    ) -> None:
        """`KVStore.map_session`; only own pages are looked at."""
        whole, self.length = self.length, max(self.length, tokens)
        # Told that everything is there, the base class looks at no page by itself.
        super().map_session(folder, file_tokens, tokens, seed, shared=shared)
        if whole < tokens:
            self._memory.load(whole // PAGE_TOKENS, num_pages(tokens))
            last = torch.tensor([tokens // PAGE_TOKENS])
            for layer in range(self.layout.num_layers if tokens % PAGE_TOKENS else 0):
                for part in (KEYS, VALUES, SUMMARY):
                    self._compare(part, layer, last)

    def save_own(self, start: int, end: int) -> int:
        """`KVStore.save` of own pages; waits until they are in the files.

        The record of what is done is rank 0's and vouches for the pages of all ranks, so none may
        still be on its way from a GPU.
        """
        self._memory.save(start // PAGE_TOKENS, num_pages(end))
        self._memory.flush()
        return end

    def flush_own(self) -> None:
        """Wait until the own pages are in the files. Raises OSError."""
        self._memory.flush()

    def tail_own(self) -> ShardTail:
        """`KVStore.tail`; of use where the last page is an own one."""
        page = max(self.length - 1, 0) // PAGE_TOKENS
        owner = int(self.placement.owners[page])
        pages: list[torch.Tensor] = []
        scales: list[torch.Tensor | None] = []
        if owner == self.placement.rank:
            slot = int(self.slots.of[page])
            pages = [pages[slot].clone() for pages in self.pages]
            scales = [None if scales is None else scales[slot].clone() for scales in self.scales]
        return ShardTail(self.length, pages, scales, None, owner)

    def rewind_own(self, tail: ShardTail) -> None:
        """`KVStore.rewind`.

        A last page that has moved since goes back to the rank that has it as it was.
        """
        page, filled = divmod(tail.length, PAGE_TOKENS)
        # A page that was full is as it was.
        if filled:
            self._hand(page, tail.owner)
            if tail.owner == self.placement.rank:
                self._restore(page, tail)
        self.truncate(tail.length)

    def _restore(self, page: int, tail: Tail) -> None:
        slot = int(self.slots.of[page])
        self._memory.written(slot)
        for layer, (pages, scales) in enumerate(zip(tail.pages, tail.scales, strict=True)):
            self.pages[layer][slot].copy_(pages)
            mine = self.scales[layer]
            if mine is not None and scales is not None:
                mine[slot].copy_(scales)

    def reserve_slots(self, pages: Sequence[int], to: int) -> None:
        """Before `move`: room for the pages where they go.

        Raises:
            DoesNotFitError: the device has none.
        """
        if self.placement.rank == to:
            coming = int((self.placement.owners[list(pages)] != to).sum())
            self._grow(self.slots.short_of(coming))

    def move(self, group: Group, pages: Sequence[int], to: int) -> None:
        """Send pages, with their summaries, from their owners to a rank; collective.

        Args:
            group: all ranks.
            pages: whole pages, before the one that is written next; see `reserve_slots`.
            to: their new owner.
        """
        which = torch.tensor(pages)
        which = which[self.placement.owners[which] != to]
        owners, rank = self.placement.owners[which], self.placement.rank
        came, gone = which.tolist(), which[owners == rank].tolist()
        if rank == to and came:
            self.slots.take(came)
            self._place()
            self._memory.written(int(self.slots.of[which].min()))
        for layer in range(self.layout.num_layers):
            self._move_layer(group, layer, which, owners, to)
        self.placement.move(came, to)
        self.slots.leave(gone)
        if rank == to and self._checks is not None:
            self._checks.trust(came)
        self._place()

    def _move_layer(
        self, group: Group, layer: int, pages: torch.Tensor, owners: torch.Tensor, to: int
    ) -> None:
        """Records and summaries of pages that are another rank's."""
        records, layout = self._memory.records[layer], self.layout
        summaries = self._index[layer].summaries.transpose(0, 1)
        for rank, rows in enumerate(self._sent(group, layer, pages, owners, to)):
            if len(rows):
                at = self.slots.of[pages[owners == rank]].to(self.device)
                record, summary = rows.split((layout.page_bytes, layout.summary_bytes), 1)
                records[at] = record
                shape = (len(at), *layout.summary_shape)
                summaries[at] = from_bytes(summary.contiguous(), layout.dtype, shape)

    def _sent(
        self, group: Group, layer: int, pages: torch.Tensor, owners: torch.Tensor, to: int
    ) -> list[torch.Tensor]:
        """Send pages of one layer to a rank; collective.

        Args:
            pages, owners: int64 [n], and the rank of each.
            to: who takes them.

        Returns:
            of each rank uint8 [its pages, page_bytes + summary_bytes]; of no pages elsewhere.
        """
        row_bytes = self.layout.page_bytes + self.layout.summary_bytes
        mine = pages[owners == group.rank]
        for part in (KEYS, VALUES, SUMMARY):
            self._compare(part, layer, mine)
        at = self.slots.of[mine].to(self.device)
        summaries = self._index[layer].summaries[:, at].transpose(0, 1)
        rows = (
            self._memory.records[layer][at],
            as_bytes(summaries).view(len(at), self.layout.summary_bytes),
        )
        parts = [torch.empty(0, dtype=torch.uint8, device=self.device)] * group.size
        parts[to] = as_bytes(torch.cat(rows, 1))
        sizes = [0] * group.size
        if group.rank == to:
            sizes = [int((owners == rank).sum()) * row_bytes for rank in range(group.size)]
        return [raw.view(-1, row_bytes) for raw in group.exchange(parts, sizes, "pages")]

    def picked_by(
        self, group: Group, layer: int, pages: Sequence[int], to: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pages of whichever rank as `KVStore.picked` gives them, on the rank `to`; collective."""
        which = torch.tensor(pages)
        owners, page_bytes = self.placement.owners[which], self.layout.page_bytes
        records = torch.zeros(len(pages), page_bytes, dtype=torch.uint8, device=self.device)
        for rank, rows in enumerate(self._sent(group, layer, which, owners, to)):
            if len(rows):
                at = (owners == rank).nonzero().flatten().to(self.device)
                records[at] = rows[:, :page_bytes]
        return contents(records, self.layout), scales_of(records, self.layout)
