"""One rank's part of a context: a store of all positions, of which only the own pages are filled.

On a CPU memory is taken for pages that are written alone, so the others cost addresses and nothing
else, and a session's files lie under the own pages as they lie under a whole store's.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from hipcli.engine.distributed.group import Group, as_bytes, from_bytes
from hipcli.engine.distributed.placement import Placement
from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, num_pages
from hipcli.engine.store.pages import KVStore, Tail
from hipcli.kernels.types import PagedKV


class ShardStore(KVStore):
    """See the module.

    What a session's files give is compared with its checksums on its owner. A page that is not
    what was written is remembered in `trouble` and attended all the same: the pass goes on on all
    ranks, and fails at its end on all of them.

    Args:
        layout, capacity_tokens, backend, device: as of a `KVStore`.
        placement: which pages are this rank's.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        backend: str,
        device: torch.device,
        placement: Placement,
    ) -> None:
        super().__init__(layout, capacity_tokens, backend, device)
        self.placement = placement
        self.trouble: DamagedSessionError | None = None
        self._whole = [kv.page_table for kv in self.kv]
        self._place()

    def _place(self) -> None:
        """Page tables with holes where pages are another rank's."""
        away = (self.placement.owners != self.placement.rank).to(self.device)
        self._shards = [
            PagedKV(kv.k_pages, kv.v_pages, table.masked_fill(away, -1))
            for kv, table in zip(self.kv, self._whole, strict=True)
        ]

    def shard_kv(self, layer: int) -> PagedKV:
        """Keys and values of a layer; -1 in the page table for pages of other ranks."""
        return self._shards[layer]

    def scored_kv(self, layer: int) -> PagedKV:
        """The same with slots for all pages, for operators that are told which ones to read."""
        return self.kv[layer]

    def own_kv(self, layer: int, tokens: int) -> tuple[PagedKV, torch.Tensor, int]:
        """This rank's pages of the first `tokens` as a sequence of their own.

        Returns:
            keys and values, the pages int64 [n] ascending, and how many tokens they hold: only the
            last one may be half filled.
        """
        pages = self.placement.own(0, num_pages(tokens)).to(self.device)
        held = sum(high - low for low, high in self.placement.runs(0, tokens))
        kv = self.kv[layer]
        return PagedKV(kv.k_pages, kv.v_pages, kv.page_table[pages]), pages, held

    def summaries(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Summaries of some own pages, [num_kv_heads, n, 2, head_dim]."""
        self._compare(SUMMARY, layer, pages)
        return self._index[layer].summaries[:, pages]

    def owned(self, pages: torch.Tensor) -> torch.Tensor:
        """Which of these pages (-1 for none) are this rank's, bool of the same shape."""
        owners = self.placement.owners.to(pages.device)
        return (pages >= 0) & (owners[pages.clamp(min=0).long()] == self.placement.rank)

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
        try:
            self._memory.compare(part, layer, pages[self.owned(pages)])
        except DamagedSessionError as error:
            self.trouble = self.trouble or error

    def fits_page(self, start: int, tokens: int) -> bool:
        """Never: whose page it is has to be asked."""
        return False

    def append(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write those of the tokens [start, start + T) that are on own pages."""
        for low, high in self.placement.runs(start, start + k.shape[0]):
            piece = slice(low - start, high - start)
            super().append(layer, low, k[piece], v[piece])

    def append_own(
        self, layer: int, runs: Sequence[tuple[int, int]], k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write tokens on own pages.

        Args:
            runs: which, as [first, last).
            k, v: [tokens of the runs, num_kv_heads, head_dim].
        """
        at = 0
        for low, high in runs:
            piece = slice(at, at + high - low)
            super().append(layer, low, k[piece], v[piece])
            at += high - low

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
        for low, high in self.placement.runs(start // PAGE_TOKENS * PAGE_TOKENS, end):
            self._memory.save(low // PAGE_TOKENS, num_pages(high))
        self._memory.flush()
        return end

    def flush_own(self) -> None:
        """Wait until the own pages are in the files. Raises OSError."""
        self._memory.flush()

    def tail_own(self) -> Tail:
        """`KVStore.tail`; of use where the last page is an own one."""
        return super().tail()

    def rewind_own(self, tail: Tail) -> None:
        """`KVStore.rewind`; a last page that is another rank's is none of ours."""
        page = max(tail.length - 1, 0) // PAGE_TOKENS
        if bool(self.owned(torch.tensor([page]))):
            super().rewind(tail)
        self.truncate(tail.length)

    def move(self, group: Group, pages: Sequence[int], to: int) -> None:
        """Send pages, with their summaries, from their owners to a rank; collective.

        Args:
            group: all ranks.
            pages: whole pages, before the one that is written next.
            to: their new owner.
        """
        owners = self.placement.owners[list(pages)]
        for layer in range(self.layout.num_layers):
            self._move_layer(group, layer, torch.tensor(pages), owners, to)
        came = [page for page, owner in zip(pages, owners.tolist(), strict=True) if owner != to]
        self.placement.move(pages, to)
        if self.placement.rank == to and self._checks is not None:
            self._checks.trust(came)
        self._place()

    def _move_layer(
        self, group: Group, layer: int, pages: torch.Tensor, owners: torch.Tensor, to: int
    ) -> None:
        summaries = self._index[layer].summaries.transpose(0, 1)
        row_bytes = self.layout.page_bytes + self.layout.summary_bytes
        empty = torch.empty(0, dtype=torch.uint8, device=self.device)
        parts = [empty] * group.size
        mine = pages[owners == group.rank] if group.rank != to else pages[:0]
        if len(mine):
            for part in (KEYS, VALUES, SUMMARY):
                self._compare(part, layer, mine)
            at = mine.to(self.device)
            rows = (self.pages[layer][at], summaries[at])
            parts[to] = torch.cat([as_bytes(x) for x in rows])
        sizes = [0] * group.size
        if group.rank == to:
            sizes = [int((owners == r).sum()) * row_bytes for r in range(group.size)]
            sizes[to] = 0
        received = group.exchange(parts, sizes, "pages")
        for rank, raw in enumerate(received):
            if not len(raw):
                continue
            at = pages[owners == rank].to(self.device)
            borders = (len(at) * self.layout.page_bytes, len(at) * self.layout.summary_bytes)
            content, summary = raw.split(borders)
            pages_shape = (len(at), *self.layout.page_shape)
            self.pages[layer][at] = from_bytes(content, self.layout.dtype, pages_shape)
            summary_shape = (len(at), *self.layout.summary_shape)
            summaries[at] = from_bytes(summary, self.layout.dtype, summary_shape)
