"""Checksums of a session's pages, and which pages this process has compared with them.

Opening a session must not read all of it. So a page's keys, its values and its summary have a
CRC-32 each, compared when they are first used. The table lies in a file of its own that is mapped
like the pages: what a killed process had written of both is there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.store.crc import crc32, of_rows
from hipcli.engine.store.layout import layer_files

KEYS, VALUES, SUMMARY = range(3)
PARTS = ("keys", "values", "summaries")

# Rows of one checksum where small rows are compared in runs, and runs worked out together.
RUN_PAGES = 64
RUNS = 1024


def table_bytes(num_pages: int, num_layers: int) -> int:
    """Size of the file of checksums."""
    return num_pages * num_layers * len(PARTS) * 4


class RowSums:
    """The CRC of rows that stand one behind the other, from the CRC of each.

    A CRC is linear: what a row makes of another initial value differs from what it makes of the
    seed by a linear function of the two values' difference, the same for all rows of one length.

    Args:
        row_bytes: length of a row.
        seed: of the CRC of each row, and of the whole.
    """

    def __init__(self, row_bytes: int, seed: int) -> None:
        self._seed = np.uint32(seed)
        zeros = bytes(row_bytes)
        at_zero = crc32(zeros, 0)
        self._tables = np.zeros((4, 256), dtype=np.uint32)
        for bit in range(32):
            made = np.uint32(crc32(zeros, 1 << bit) ^ at_zero)
            place, value = divmod(bit, 8)
            # Values below a bit, and the same with it: the function of a sum is the sum.
            self._tables[place, 1 << value : 2 << value] = self._tables[place, : 1 << value] ^ made

    def of_runs(self, sums: np.ndarray, length: int) -> np.ndarray:
        """CRC of each run of `length` rows, the last one maybe shorter.

        Args:
            sums: uint32 [n], of the rows.

        Returns:
            uint32 [ceil(n / length)].
        """
        runs = -(-len(sums) // length)
        padded = np.zeros(runs * length, dtype=np.uint32)
        padded[: len(sums)] = sums
        columns = padded.reshape(runs, length)
        found = columns[:, 0].copy()
        for place in range(1, length):
            last = runs if place < len(sums) - (runs - 1) * length else runs - 1
            found[:last] = columns[:last, place] ^ self._moved(found[:last] ^ self._seed)
        return found

    def _moved(self, values: np.ndarray) -> np.ndarray:
        """The linear function, of uint32 [n]."""
        low, second, third, high = (self._tables[i][(values >> (8 * i)) & 255] for i in range(4))
        moved: np.ndarray = low ^ second ^ third ^ high
        return moved


class PageChecks:
    """The checksums of one session, each seeded so that pages of another session never match.

    Args:
        path: file of `table_bytes` bytes: uint32 [num_pages, num_layers, 3].
        num_pages: pages that the session's files have room for.
        num_layers: layers of the model.
        seed: of the CRC.
        writable: True while the session is built.

    Raises:
        DamagedSessionError: the file is missing or has another size.
    """

    def __init__(
        self, path: Path, num_pages: int, num_layers: int, seed: int, *, writable: bool
    ) -> None:
        shape = (num_pages, num_layers, len(PARTS))
        try:
            mode: Literal["r+", "r"] = "r+" if writable else "r"
            self._table: np.ndarray = np.memmap(path, dtype="<u4", mode=mode, shape=shape)
        except (OSError, ValueError) as error:
            raise DamagedSessionError(f"{path.name} cannot be used: {error}") from None
        self._seed = seed
        # Pages that this process writes itself need no comparison.
        self._known = np.ones((len(PARTS), num_layers, num_pages), dtype=bool)
        self._unknown = np.zeros((len(PARTS), num_layers), dtype=np.int64)
        self._sums: RowSums | None = None

    def expect(self, first: int, last: int) -> None:
        """Pages [first, last) came from the files: compare them before they are used."""
        self._known[:, :, first:last] = False
        self._unknown[:] = (~self._known).sum(2)

    def trust(self, pages: Sequence[int]) -> None:
        """These pages came from elsewhere, where they were compared."""
        self._known[:, :, list(pages)] = True
        self._unknown[:] = (~self._known).sum(2)

    def settled(self, layer: int) -> bool:
        """True if no page of the layer is left to compare."""
        return not self._unknown[:, layer].any()

    def unknown(self, part: int, layer: int, pages: np.ndarray | None) -> np.ndarray:
        """Those of pages (None: of all) that are still to be compared: int64 [n], ascending."""
        known = self._known[part, layer]
        if not self._unknown[part, layer]:
            return np.empty(0, dtype=np.int64)
        if pages is None:
            return np.flatnonzero(~known)
        pages = pages[(pages >= 0) & (pages < len(known))]
        return np.unique(pages[~known[pages]]).astype(np.int64)

    def record(self, part: int, layer: int, first: int, rows: np.ndarray) -> None:
        """Write the checksums of pages just completed.

        Args:
            part: KEYS, VALUES or SUMMARY.
            layer: which layer.
            first: page of the first row.
            rows: uint8 [n, bytes of the part], each row contiguous.
        """
        last = first + len(rows)
        self._table[first:last, layer, part] = of_rows(list(rows), self._seed)
        self._mark(part, layer, np.arange(first, last))

    def compare(
        self, part: int, layer: int, pages: np.ndarray | None, rows: np.ndarray, first: int = 0
    ) -> None:
        """Compare pages that were not compared yet.

        Args:
            part: KEYS, VALUES or SUMMARY.
            layer: which layer.
            pages: int [n], in any order, possibly repeated; those outside of the session are
                passed over. None means all.
            rows: uint8 [.., bytes of the part]; `rows[i]` belongs to page `first + i`.
            first: see `rows`.

        Raises:
            DamagedSessionError: a page is not what was written.
        """
        whole, pages = pages is None, self.unknown(part, layer, pages)
        if not len(pages):
            return
        if whole and self._runs_match(part, layer, pages, rows, first):
            self._mark(part, layer, pages)
            return
        expected = self._table[pages, layer, part].tolist()
        found = of_rows([rows[page - first] for page in pages.tolist()], self._seed)
        for page, is_, must_be in zip(pages.tolist(), found, expected, strict=True):
            if is_ != must_be:
                raise DamagedSessionError(
                    f"the {PARTS[part]} of layer {layer}, page {page}, are damaged"
                )
        self._mark(part, layer, pages)

    def _runs_match(
        self, part: int, layer: int, pages: np.ndarray, rows: np.ndarray, first: int
    ) -> bool:
        """True if neighbouring pages of small rows are what was written, run by run.

        A checksum of many rows in one go costs a fraction of as many calls; what it must be
        follows from those of the rows (`RowSums`).
        """
        if part != SUMMARY or not len(pages) or pages[-1] - pages[0] + 1 != len(pages):
            return False
        if not rows.flags.c_contiguous:
            return False
        if self._sums is None:
            self._sums = RowSums(rows.shape[1], self._seed)
        sums = self._sums
        stored = np.asarray(self._table[pages, layer, part], dtype=np.uint32)
        for start in range(0, len(pages), RUN_PAGES * RUNS):
            part_of = stored[start : start + RUN_PAGES * RUNS]
            for place, expected in enumerate(sums.of_runs(part_of, RUN_PAGES)):
                begin = int(pages[start]) - first + place * RUN_PAGES
                count = min(RUN_PAGES, len(part_of) - place * RUN_PAGES)
                if crc32(rows[begin : begin + count].data, self._seed) != expected:
                    return False
        return True

    def compare_rows(self, part: int, layer: int, first: int, rows: np.ndarray) -> None:
        """Compare pages [first, first + n), given uint8 [n, bytes of the part] of them."""
        self.compare(part, layer, np.arange(first, first + len(rows)), rows, first)

    def _mark(self, part: int, layer: int, pages: np.ndarray) -> None:
        known = self._known[part, layer]
        self._unknown[part, layer] -= np.count_nonzero(~known[pages])
        known[pages] = True


def compare_files(
    folder: Path, num_pages: int, num_layers: int, part_bytes: tuple[int, int], checks: PageChecks
) -> None:
    """Compare every page in a session's files.

    Args:
        folder: the session's folder.
        num_pages: how many pages to compare.
        num_layers: layers of the model.
        part_bytes: bytes of a page and of a summary.
        checks: their checksums.

    Raises:
        DamagedSessionError: a page is not what was written, or a file is missing or short.
    """
    page_bytes, summary_bytes = part_bytes
    checks.expect(0, num_pages)
    for layer in range(num_layers):
        page_file, index_file = layer_files(folder, layer)
        try:
            shape = (num_pages, 2, page_bytes // 2)
            pages = np.memmap(page_file, np.uint8, "r", shape=shape)
            index = np.memmap(index_file, np.uint8, "r", shape=(num_pages, summary_bytes))
        except (OSError, ValueError) as error:
            raise DamagedSessionError(f"files of layer {layer} cannot be read: {error}") from None
        for part, rows in ((KEYS, pages[:, 0]), (VALUES, pages[:, 1]), (SUMMARY, index)):
            checks.compare(part, layer, None, rows)
