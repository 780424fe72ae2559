"""What a store has to do with a session's files: their pages, written and compared.

Where the pages lie is the business of a memory: `HostMemory` maps the files into the process,
`DeviceMemory` keeps pages on a GPU and copies them to and from the files.
"""

from pathlib import Path

import torch

from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks
from hipcli.engine.store.host import HostMemory
from hipcli.engine.store.layout import (
    PAGE_TOKENS,
    KVLayout,
    checksum_file,
    layer_files,
    num_pages,
)
from hipcli.engine.store.memory import DeviceMemory
from hipcli.kernels.types import PageIndex


class CheckedIndex:
    """The summaries per layer; those from a session's files are compared when first asked for."""

    def __init__(self, memory: HostMemory | DeviceMemory, layers: list[PageIndex]) -> None:
        self._memory = memory
        self._layers = layers

    def __getitem__(self, layer: int) -> PageIndex:
        self._memory.compare(SUMMARY, layer, None)
        return self._layers[layer]


class FiledPages:
    """The part of a `KVStore` that has to do with files; it is made by that.

    Attributes:
        layout: shape of the pages.
        backend: of the kernels that read them.
        length: tokens of which every layer has been written.
    """

    layout: KVLayout
    backend: str
    length: int
    _memory: HostMemory | DeviceMemory
    _checks: PageChecks | None

    def map_session(
        self, folder: Path, file_tokens: int, tokens: int, seed: int, *, shared: bool
    ) -> None:
        """Lay a session's files under the store, whose `length` becomes `tokens`.

        Args:
            folder: the session's folder.
            file_tokens: tokens the files have room for.
            tokens: how many of them are there.
            seed: of the files' checksums.
            shared: True while building (`save` writes to the files), False to read.

        Raises:
            DamagedSessionError: pages are not what was written. On a CPU only the last page is
                looked at here, the others when they are used.
        """
        pages, layers = num_pages(file_tokens), self.layout.num_layers
        files = [layer_files(folder, layer) for layer in range(layers)]
        resident = num_pages(self.length) if self.length >= tokens else self.length // PAGE_TOKENS
        if self._checks is None:
            path = checksum_file(folder)
            self._checks = PageChecks(path, pages, layers, seed, writable=shared)
        self._memory.attach(files, pages, self._checks, shared=shared)
        self._memory.load(resident, num_pages(tokens))
        self.length = tokens
        if tokens % PAGE_TOKENS and resident < num_pages(tokens):
            # What follows the context is written into its last page.
            last = torch.tensor([tokens // PAGE_TOKENS])
            for layer in range(layers):
                for part in (KEYS, VALUES, SUMMARY):
                    self._memory.compare(part, layer, last)

    @property
    def resident_bytes(self) -> int:
        """What is in memory now of pages that lie in files; 0 where files are not mapped."""
        return self._memory.resident_bytes if isinstance(self._memory, HostMemory) else 0

    @property
    def overflow_bytes(self) -> int:
        """Size of the file that takes the pages of an empty store whose memory is too small, or
        0."""
        return self._memory.overflow_bytes

    def overflow_to(self, fd: int) -> None:
        """Put an open file of `overflow_bytes` under the pages; `fd` may be closed afterwards."""
        self._memory.overflow_to(fd)

    def relieve(self) -> None:
        """Give pages back to their files if the process is near its limit of memory.

        Happens by itself where pages are checked before they are used and where they are saved;
        to be called between pieces by what reads more than a layer of them.
        """
        self._memory.relieve()

    def check_keys(self, layer: int, pages: torch.Tensor | None = None) -> None:
        """Compare the keys of pages (None: of all) with their checksums, once.

        To be called before keys are read that may have come from a session's files.

        Args:
            layer: which layer.
            pages: integers of any shape, -1 for none.

        Raises:
            DamagedSessionError: they are not what was written.
        """
        self._memory.relieve()
        self._memory.compare(KEYS, layer, None if pages is None else pages.flatten())

    def check_attended(
        self,
        layer: int,
        blocks: torch.Tensor | None,
        block_size_k: int,
        sink_tokens: int,
        window_start: int,
    ) -> None:
        """Compare, once, keys and values that queries are about to attend.

        Args:
            layer: which layer.
            blocks: selected blocks, of any shape, -1 for none; None for no selection.
            block_size_k: tokens of a block.
            sink_tokens: attended too.
            window_start: everything from here on is attended; 0 for all.

        Raises:
            DamagedSessionError: they are not what was written.
        """
        self._memory.relieve()
        if self._checks is None or self.backend != "cpu" or self._checks.settled(layer):
            return
        pages = None
        if window_start > 0:
            parts = [
                torch.arange(num_pages(sink_tokens)),
                torch.arange(window_start // PAGE_TOKENS, num_pages(self.length)),
            ]
            if blocks is not None:
                parts.append(blocks.flatten().long() * block_size_k // PAGE_TOKENS)
            pages = torch.cat(parts)
        self._memory.compare(KEYS, layer, pages)
        self._memory.compare(VALUES, layer, pages)

    def save(self, start: int, end: int) -> int:
        """Write the pages of tokens [start, end) to the session's files, maybe later.

        Returns:
            how many tokens are in the files now.

        Raises:
            OSError: an earlier page could not be written.
        """
        saved = self._memory.save(start // PAGE_TOKENS, num_pages(end))
        return end if saved >= num_pages(end) else saved * PAGE_TOKENS

    def flush(self) -> None:
        """Wait until all pages are in the files. Raises OSError as `save` does."""
        self._memory.flush()
