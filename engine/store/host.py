"""Pages on a CPU: a session's files are mapped, so pages and files are one.

Under a limit of memory pages are given back to their files (`limits.py`); without a session a
temporary file takes what memory does not hold.
"""

import numpy as np
import torch

from hipcli.engine.resident import resident_in
from hipcli.engine.store.checks import KEYS, SUMMARY, VALUES, PageChecks
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.limits import HostLimit
from hipcli.engine.store.mapping import AddressRange
from hipcli.engine.store.memory import LayerFiles, contents, scales_of

# Pages whose checksums are compared before memory is looked at again.
COMPARED_PAGES = 1024


class HostMemory:
    """Pages in the address space of the process, a session's files mapped under them.

    Args:
        layout: shape of a page and of its summary.
        capacity: pages a layer.
        device: the CPU.
        limit: of the process's memory, or None.

    Attributes:
        pages: per layer [capacity, 2, num_kv_heads, page_size, head_dim]; strided where scales
            lie between two pages.
        scales: per layer fp32 [capacity, 2, num_kv_heads] of quantised pages, else None.
        summaries: per layer [num_kv_heads, capacity, 2, head_dim], a view of memory in which a
            page's summary lies in one piece, so that a file of them grows at its end.
        records: per layer uint8 [capacity, page_bytes], what a file holds of a page: pages and
            scales are views of them.
    """

    def __init__(
        self,
        layout: KVLayout,
        capacity: int,
        device: torch.device,
        limit: HostLimit | None = None,
    ) -> None:
        self._layout = layout
        self._capacity = capacity
        # Where everything fits there is nothing to look after.
        fits = limit is None or limit.holds(layout.num_layers * capacity * layout.page_bytes)
        self._limit = None if fits else limit
        # Pages from the first one on that are as their file has them, whatever is written.
        self._filed = 0
        self._shared = True
        self._checks: PageChecks | None = None
        self._bytes: list[tuple[np.ndarray, np.ndarray]] = []
        self._ranges: list[tuple[AddressRange, AddressRange]] = []
        self.pages: list[torch.Tensor] = []
        self.scales: list[torch.Tensor | None] = []
        self.summaries: list[torch.Tensor] = []
        self.records: list[torch.Tensor] = []
        for _ in range(layout.num_layers):
            pages = AddressRange(capacity * layout.page_bytes)
            index = AddressRange(capacity * layout.summary_bytes)
            self._ranges.append((pages, index))
            records = pages.tensor(torch.uint8, (capacity, layout.page_bytes))
            self.records.append(records)
            self.pages.append(contents(records, layout))
            self.scales.append(scales_of(records, layout))
            summaries = index.tensor(layout.dtype, (capacity, *layout.summary_shape))
            self.summaries.append(summaries.transpose(0, 1))
            self._bytes.append((_as_bytes(records, 2), _as_bytes(summaries, 1)))

    def attach(
        self, files: LayerFiles, file_pages: int, checks: PageChecks, *, shared: bool
    ) -> None:
        """Map the files; with `shared` what is written reaches them."""
        self._checks = checks
        self._filed, self._shared = file_pages, shared
        for (page_file, index_file), (pages, index) in zip(files, self._ranges, strict=True):
            pages.map_file(page_file, file_pages * self._layout.page_bytes, shared=shared)
            index.map_file(index_file, file_pages * self._layout.summary_bytes, shared=shared)

    def load(self, first: int, last: int) -> None:
        """The mapping is the pages; each is compared with its checksums when it is first used."""
        if self._checks is not None:
            self._checks.expect(first, last)

    @property
    def overflow_bytes(self) -> int:
        """Size of a file for all pages where the limit does not hold them, else 0."""
        if self._limit is None:
            return 0
        return sum(pages.num_bytes for pages, _ in self._ranges)

    def overflow_to(self, fd: int) -> None:
        """Put an open file of `overflow_bytes` under all pages; nothing is in them yet."""
        offset = 0
        for pages, _ in self._ranges:
            pages.map_part(fd, offset)
            offset += pages.num_bytes
        self._filed = self._capacity

    def written(self, page: int) -> None:
        """Pages from this one on are about to differ from a file that is only read."""
        if not self._shared:
            self._filed = min(self._filed, page)

    def relieve(self) -> None:
        """Give pages back to their files if the limit is near."""
        if self._limit is None:
            return
        if self._limit.reached(self._filed * self._layout.page_bytes * 9 // 8):
            for pages, _ in self._ranges:
                pages.let_go(self._filed * self._layout.page_bytes)

    @property
    def resident_bytes(self) -> int:
        """What of the pages' files is in memory now."""
        return resident_in([pages.filed for pages, _ in self._ranges])

    def compare(self, part: int, layer: int, pages: torch.Tensor | None) -> None:
        """Compare pages (None: all) with their checksums, as `PageChecks.compare` says."""
        if self._checks is None:
            return
        if part == KEYS and self._layout.quantised:
            # The scales of the keys lie in the second half of a page.
            self.compare(VALUES, layer, pages)
        rows = self._rows(part, layer)
        if part == SUMMARY:
            self._checks.compare(part, layer, None if pages is None else pages.numpy(), rows)
            return
        wanted = self._checks.unknown(part, layer, None if pages is None else pages.numpy())
        whole = pages is None
        self._fetch(part, layer, wanted[:COMPARED_PAGES], whole)
        for at in range(0, len(wanted), COMPARED_PAGES):
            behind = at + COMPARED_PAGES
            # The next ones come from the disk while these are looked at.
            self._fetch(part, layer, wanted[behind : behind + COMPARED_PAGES], whole)
            self._checks.compare(part, layer, wanted[at:behind], rows)
            if whole:
                self.relieve()

    def _fetch(self, part: int, layer: int, pages: np.ndarray, whole: bool) -> None:
        """Let keys or values of pages come from the disk, and nothing else of what lies there.

        Args:
            pages: int64 [n], ascending.
            whole: of a whole layer only what is known to be missing is asked for: that there is
                nothing to do takes long too, page by page.
        """
        half = self._layout.page_bytes // 2
        mapped = self._ranges[layer][0]
        starts = pages * self._layout.page_bytes + (KEYS, VALUES).index(part) * half
        if whole:
            starts = starts[mapped.missing(starts, half)]
        for start in starts.tolist():
            mapped.fetch(start, start + half)

    def _rows(self, part: int, layer: int) -> np.ndarray:
        pages, index = self._bytes[layer]
        return index[:, 0] if part == SUMMARY else pages[:, (KEYS, VALUES).index(part)]

    def save(self, first: int, last: int) -> int:
        """Pages are in the file as they are written; what is left to write are checksums."""
        if self._checks is not None:
            for layer in range(self._layout.num_layers):
                for part in (KEYS, VALUES, SUMMARY):
                    rows = self._rows(part, layer)[first:last]
                    self._checks.record(part, layer, first, rows)
        self.relieve()
        return last

    def flush(self) -> None:
        """Nothing is under way."""


def _as_bytes(rows: torch.Tensor, parts: int) -> np.ndarray:
    """A contiguous tensor on the CPU as uint8 [rows, parts, bytes of a part]; shares its memory."""
    flat: np.ndarray = rows.flatten().view(torch.uint8).numpy()
    return flat.reshape(len(rows), parts, -1)
