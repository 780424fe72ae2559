"""The KV store: un-rotated keys and values in pages of 64 tokens, with a summary of each page.

On a CPU the device tier is the host's memory and the disk tier is mapped into it: a session's
files and the memory for the tokens after them form one tensor of pages a layer.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from hipcli.engine.store.mapping import AddressRange

PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of one layer's pages.

    Args:
        num_layers, num_kv_heads, head_dim: the model's.
        dtype: of keys, values and summaries.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def page_shape(self) -> tuple[int, int, int, int]:
        """[2, num_kv_heads, page_size, head_dim]: keys, then values."""
        return (2, self.num_kv_heads, PAGE_TOKENS, self.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return 2 * self.num_kv_heads * PAGE_TOKENS * self.head_dim * self.dtype.itemsize

    @property
    def summary_bytes(self) -> int:
        """Bytes of the summary of one page of one layer: maxima and minima of its keys."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def num_bytes(self, num_tokens: int) -> int:
        """Bytes of pages and summaries of all layers for `num_tokens` tokens."""
        pages = num_pages(num_tokens)
        return self.num_layers * pages * (self.page_bytes + self.summary_bytes)


def num_pages(num_tokens: int) -> int:
    """Pages that `num_tokens` tokens touch, the last one possibly half filled."""
    return -(-num_tokens // PAGE_TOKENS)


def layer_files(folder: Path, layer: int) -> tuple[Path, Path]:
    """Files of a layer's pages and summaries inside a session's folder."""
    return folder / "kv" / f"{layer:03d}.pages", folder / "index" / f"{layer:03d}.bounds"


class KVStore:
    """Keys and values of one context and of the tokens that follow it.

    Args:
        layout: shape of the pages.
        capacity_tokens: how many tokens the store can ever hold.

    Attributes:
        pages: per layer [capacity_pages, 2, num_kv_heads, page_size, head_dim].
        index: per layer [capacity_pages, num_kv_heads, 2 * head_dim]: per channel the maximum,
            then the minimum of a full page's keys.
        length: tokens of which every layer has been written.
    """

    def __init__(self, layout: KVLayout, capacity_tokens: int) -> None:
        self.layout = layout
        self.capacity_tokens = num_pages(capacity_tokens) * PAGE_TOKENS
        self.length = 0
        capacity = num_pages(capacity_tokens)
        self._ranges: list[tuple[AddressRange, AddressRange]] = []
        self.pages: list[torch.Tensor] = []
        self.index: list[torch.Tensor] = []
        for _ in range(layout.num_layers):
            pages = AddressRange(capacity * layout.page_bytes)
            index = AddressRange(capacity * layout.summary_bytes)
            self._ranges.append((pages, index))
            self.pages.append(pages.tensor(layout.dtype, (capacity, *layout.page_shape)))
            shape = (capacity, layout.num_kv_heads, 2 * layout.head_dim)
            self.index.append(index.tensor(layout.dtype, shape))

    def map_session(self, folder: Path, file_tokens: int, *, shared: bool) -> None:
        """Lay a session's files under the store.

        Args:
            folder: the session's folder.
            file_tokens: tokens the files have room for.
            shared: True while building (writes reach the files), False to read.
        """
        pages = num_pages(file_tokens)
        for layer, (page_range, index_range) in enumerate(self._ranges):
            page_file, index_file = layer_files(folder, layer)
            page_range.map_file(page_file, pages * self.layout.page_bytes, shared=shared)
            index_range.map_file(index_file, pages * self.layout.summary_bytes, shared=shared)

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
        pages = self.pages[layer]
        position = start
        while position < end:
            page, offset = divmod(position, PAGE_TOKENS)
            if offset == 0 and end - position >= PAGE_TOKENS:
                count = (end - position) // PAGE_TOKENS * PAGE_TOKENS
                self._write_full(pages, page, k, v, position - start, count)
            else:
                count = min(PAGE_TOKENS - offset, end - position)
                source = slice(position - start, position - start + count)
                pages[page, 0, :, offset : offset + count] = k[source].transpose(0, 1)
                pages[page, 1, :, offset : offset + count] = v[source].transpose(0, 1)
            position += count
        self._summarise(layer, start // PAGE_TOKENS, end // PAGE_TOKENS)

    def _write_full(
        self,
        pages: torch.Tensor,
        page: int,
        k: torch.Tensor,
        v: torch.Tensor,
        source: int,
        count: int,
    ) -> None:
        shape = (-1, PAGE_TOKENS, *k.shape[1:])
        last = page + count // PAGE_TOKENS
        pages[page:last, 0] = k[source : source + count].reshape(shape).transpose(1, 2)
        pages[page:last, 1] = v[source : source + count].reshape(shape).transpose(1, 2)

    def _summarise(self, layer: int, first: int, last: int) -> None:
        """Bounds of the keys of the full pages [first, last)."""
        if first >= last:
            return
        keys = self.pages[layer][first:last, 0]
        head_dim = self.layout.head_dim
        self.index[layer][first:last, :, :head_dim] = keys.amax(2)
        self.index[layer][first:last, :, head_dim:] = keys.amin(2)

    def truncate(self, length: int) -> None:
        """Forget tokens from `length` on; full pages written again are summarised again."""
        self.length = min(self.length, length)
