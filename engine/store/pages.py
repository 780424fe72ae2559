"""The KV store: un-rotated keys and values in pages of 64 tokens, with a summary of each page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from hipcli.engine.store.filed import CheckedIndex, FiledPages
from hipcli.engine.store.host import HostMemory
from hipcli.engine.store.layout import PAGE_TOKENS, KVLayout, layer_files, num_pages
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.memory import DeviceMemory, paged_kv
from hipcli.engine.store.tail import Companion, Tail
from hipcli.engine.store.tiers import Traffic
from hipcli.kernels.page_index import update_page_index_
from hipcli.kernels.paging import dequantise
from hipcli.kernels.quantise_pages import append_to_page_, quantise_pages_
from hipcli.kernels.types import PagedKV, PageIndex

__all__ = ["PAGE_TOKENS", "KVLayout", "KVStore", "Tail", "layer_files", "num_pages"]


class KVStore(FiledPages):
    """Keys and values of one context and of the tokens that follow it.

    Args:
        layout: shape of the pages.
        capacity_tokens: how many tokens the store can ever hold.
        backend: of the kernels that read it, a name of `hipcli.kernels.backends.BACKENDS`.
        device: where the pages are.
        limit: of the process's memory on a CPU, or None.

    Attributes:
        pages: per layer [capacity_pages, 2, num_kv_heads, page_size, head_dim].
        scales: per layer fp32 [capacity_pages, 2, num_kv_heads] of quantised pages, else None.
        kv: per layer the same as keys, values and page table.
        index: per layer the summaries of all full pages; asking for those of a layer raises
            DamagedSessionError when they are not what was written.
        length: tokens of which every layer has been written.
        tiered: pages may have to be fetched before they are attended.
        companion: what the method that reads keeps beside the pages; it makes it.
        kept_pages: of a pruned context which of its pages are here, int64 ascending; None for all.
            They stand side by side: only `Answerer` knows that something is missing.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity_tokens: int,
        backend: str = "cpu",
        device: torch.device | str = "cpu",
        limit: HostLimit | None = None,
    ) -> None:
        self.layout = layout
        self.limit = limit
        self.capacity_tokens = num_pages(capacity_tokens) * PAGE_TOKENS
        self.backend = backend
        self.device = torch.device(device)
        self.length = 0
        self.tiered = False
        self.companion: Companion | None = None
        self.kept_pages: np.ndarray | None = None
        capacity = num_pages(capacity_tokens)
        self._memory = self._new_memory(capacity)
        self.pages: list[torch.Tensor] = self._memory.pages
        self.scales = self._memory.scales
        self.kv = [
            paged_kv(pages, scales, table)
            for pages, scales, table in zip(
                self.pages, self.scales, self._page_tables(capacity), strict=True
            )
        ]
        self._index = [
            PageIndex("bounds", summaries, None, PAGE_TOKENS)
            for summaries in self._memory.summaries
        ]
        self.index = CheckedIndex(self._memory, self._index)
        # What positions count in that are written; a store of some pages counts these alone.
        self._written = self.kv
        self._checks = None
        self._seqlen_k = self.filled(0)
        self._seqlen = 0

    def _new_memory(self, capacity: int) -> HostMemory | DeviceMemory:
        """Where so many pages a layer lie."""
        if self.backend == "cpu":
            return HostMemory(self.layout, capacity, self.device, self.limit)
        return DeviceMemory(self.layout, capacity, self.device)

    def _page_tables(self, capacity: int) -> Sequence[torch.Tensor]:
        """Per layer int32, where in `pages` each page is: all in order, in one table."""
        table = torch.arange(capacity, dtype=torch.int32, device=self.device)
        return [table] * self.layout.num_layers

    @property
    def device_pages(self) -> int:
        """Pages a layer that can be attended at once."""
        return len(self.pages[0])

    @property
    def room(self) -> int:
        """Pages per KV head that one `fetch` may ask for besides what `reserve` keeps."""
        return self.device_pages

    @property
    def fetches_in_graphs(self) -> bool:
        """A CUDA graph can hold a `fetch`."""
        return True

    def reserve(self, start: int, end: int, window_start: int, sink_tokens: int) -> None:
        """Before a pass appends tokens [start, end): see `TieredStore`. Here all is in place."""

    def fetch(self, layer: int, pages: torch.Tensor, *, keys_only: bool = False) -> None:
        """Before pages are attended: see `TieredStore`. Here all are in place."""

    def fetch_values(self, layer: int, blocks: torch.Tensor, block_size_k: int) -> None:
        """Before blocks are attended: see `TieredStore`. Here all are in place."""

    def written_through(self, layer: int, start: int, end: int) -> None:
        """Once a layer has tokens [start, end): see `TieredStore`. Here nothing is to do."""

    def key_pieces(
        self, layer: int, first_page: int, last_page: int, *, values: bool = True
    ) -> Iterator[tuple[int, PagedKV]]:
        """Keys of pages [first_page, last_page), with their values or without, in one piece here.

        Yields:
            the first page, and all from there on under a page table of their own.
        """
        kv = self.kv[layer]
        yield first_page, replace(kv, page_table=kv.page_table[first_page:last_page])

    @property
    def traffic(self) -> Traffic:
        """What moved between device, memory and disk."""
        return Traffic()

    def rows(self, layer: int, which: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Some pages of a layer and their scales, on the device; to be read only.

        Args:
            layer: which layer.
            which: pages, one after the other.

        Returns:
            [n, 2, num_kv_heads, page_size, head_dim], and fp32 [n, 2, num_kv_heads] or None.
        """
        scales = self.scales[layer]
        return self.pages[layer][which], None if scales is None else scales[which]

    def picked(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Any pages, int64 [n] ascending on the CPU, as `rows` gives them."""
        scales, pages = self.scales[layer], pages.to(self.device)
        return self.pages[layer][pages], None if scales is None else scales[pages]

    def put(self, layer: int, first: int, pages: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Write whole pages from `first` on, as `picked` gave them."""
        place, mine = slice(first, first + len(pages)), self.scales[layer]
        self.pages[layer][place] = pages
        if mine is not None and scales is not None:
            mine[place] = scales

    def empty(self, capacity_tokens: int) -> "KVStore":
        """Another store of this kind, for so many tokens."""
        return KVStore(self.layout, capacity_tokens, self.backend, self.device, self.limit)

    def filled(self, value: int) -> torch.Tensor:
        """int32 [1] on the device, made there: a copy from the host would wait for the device."""
        return torch.full((1,), value, dtype=torch.int32, device=self.device)

    def seqlen_k(self, tokens: int) -> torch.Tensor:
        """`filled(tokens)`, kept for the layers that ask next."""
        if tokens != self._seqlen:
            self._seqlen_k, self._seqlen = self.filled(tokens), tokens
        return self._seqlen_k

    def append(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write the keys and values of tokens [start, start + T) of one layer.

        Args:
            layer: which layer.
            start: position of the first token, at most `length`.
            k, v: [T, num_kv_heads, head_dim], keys un-rotated.
        """
        end = start + k.shape[0]
        if end > self.capacity_tokens:
            raise ValueError(f"{end} tokens exceed the store's capacity {self.capacity_tokens}")
        self._memory.written(start // PAGE_TOKENS)
        if self.layout.quantised:
            self._quantise(layer, self.seqlen_k(end), k, v)
        else:
            self._copy(layer, start, k, v)
        full = end // PAGE_TOKENS * PAGE_TOKENS
        if full > start:
            self.summarise(layer, self.seqlen_k(full), full - start)

    def fits_page(self, start: int, tokens: int) -> bool:
        """True if so many tokens from `start` on lie in one page and do not fill it."""
        within = start % PAGE_TOKENS + tokens < PAGE_TOKENS
        takes = self.backend == "cpu" or not self.layout.quantised
        return within and start + tokens <= self.capacity_tokens and takes

    def append_within_page(self, layer: int, start: int, kv: torch.Tensor) -> None:
        """`append` where `fits_page`, in one go; kv is [T, 2, num_kv_heads, head_dim]."""
        page, offset = divmod(start, PAGE_TOKENS)
        self._memory.written(page)
        scales, rows = self.scales[layer], self.pages[layer].select(0, page)
        if scales is not None:
            append_to_page_(rows, scales[page], kv, offset)
        else:
            rows.narrow(2, offset, kv.shape[0]).copy_(kv.permute(1, 2, 0, 3))

    def _copy(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """`append` to pages in the dtype of k and v."""
        pages, position, end = self.pages[layer], start, start + k.shape[0]
        while position < end:
            page, offset = divmod(position, PAGE_TOKENS)
            if offset == 0 and end - position >= PAGE_TOKENS:
                count = (end - position) // PAGE_TOKENS * PAGE_TOKENS
                _write_full(pages, page, k, v, position - start, count)
            else:
                count = min(PAGE_TOKENS - offset, end - position)
                source = slice(position - start, position - start + count)
                pages[page, 0, :, offset : offset + count] = k[source].transpose(0, 1)
                pages[page, 1, :, offset : offset + count] = v[source].transpose(0, 1)
            position += count

    def _quantise(
        self, layer: int, seqlen_k: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Write the newest of `seqlen_k` (int32 [1]) tokens to quantised pages."""
        quantise_pages_(self._written[layer], k, v, seqlen_k, backend=self.backend)

    def append_at(
        self,
        layer: int,
        rows: torch.Tensor,
        seqlen_k: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """Write one token at a place that the device knows; a CUDA graph can hold this.

        Args:
            layer: which layer.
            rows: int64 [2 * num_kv_heads], see `rows_of`; quantised pages do not need them.
            seqlen_k: int32 [1], tokens with this one.
            k, v: [1, num_kv_heads, head_dim].
        """
        if self.layout.quantised:
            self._quantise(layer, seqlen_k, k, v)
            return
        table = self.pages[layer].view(-1, self.layout.head_dim)
        table.index_copy_(0, rows, torch.cat((k[0], v[0])))

    def tokens(self, layer: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values of tokens [0, end): [end, num_kv_heads, head_dim] each."""
        pages, scales = self.rows(layer, slice(0, num_pages(end)))
        if scales is not None:
            pages = dequantise(pages, scales, self.layout.dtype)
        # [n, 2, HK, page_size, D] -> [2, n * page_size, HK, D].
        k, v = pages.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :end]
        return k, v

    def rows_of(self, position: torch.Tensor) -> torch.Tensor:
        """Rows of a layer's pages, seen as [-1, head_dim], that hold one token.

        Args:
            position: int64 [1].

        Returns:
            int64 [2 * num_kv_heads]: its keys, then its values.
        """
        heads = torch.arange(2 * self.layout.num_kv_heads, device=self.device)
        page = position // PAGE_TOKENS * (2 * self.layout.num_kv_heads)
        return (page + heads) * PAGE_TOKENS + position % PAGE_TOKENS

    def summarise(self, layer: int, seqlen_k: torch.Tensor, num_new_tokens: int) -> None:
        """Summarise the pages that hold the newest of `seqlen_k` (int32 [1]) tokens."""
        kv = self._written[layer]
        update_page_index_(
            self._index[layer],
            kv.k_pages,
            kv.page_table,
            seqlen_k,
            num_new_tokens,
            k_scales=kv.k_scales,
            backend=self.backend,
        )

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; full pages written again are summarised again."""
        self.length = min(self.length, length)

    def tail(self) -> Tail:
        """A copy of the last page of each layer, for `rewind`."""
        page = max(self.length - 1, 0) // PAGE_TOKENS
        scales = [None if scales is None else scales[page].clone() for scales in self.scales]
        companion = None if self.companion is None else self.companion.copy()
        return Tail(self.length, [pages[page].clone() for pages in self.pages], scales, companion)

    def rewind(self, tail: Tail) -> None:
        """Go back to the moment of `tail`: what was written since is forgotten.

        Unlike `truncate` it brings back the last page as it was: tokens that join a quantised page
        change the scale of those before them.
        """
        page = max(tail.length - 1, 0) // PAGE_TOKENS
        self._memory.written(page)
        for layer, (pages, scales) in enumerate(zip(tail.pages, tail.scales, strict=True)):
            self.pages[layer][page].copy_(pages)
            mine = self.scales[layer]
            if mine is not None and scales is not None:
                mine[page].copy_(scales)
        # A copy: the same tail may be gone back to again.
        self.companion = None if tail.companion is None else tail.companion.copy()
        self.truncate(tail.length)


def _write_full(
    pages: torch.Tensor, page: int, k: torch.Tensor, v: torch.Tensor, source: int, count: int
) -> None:
    """Tokens [source, source + count) of k and v fill the pages from `page` on."""
    shape = (-1, PAGE_TOKENS, *k.shape[1:])
    last = page + count // PAGE_TOKENS
    pages[page:last, 0] = k[source : source + count].reshape(shape).transpose(1, 2)
    pages[page:last, 1] = v[source : source + count].reshape(shape).transpose(1, 2)
