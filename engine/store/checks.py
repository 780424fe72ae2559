"""Checksums of a session's pages, and which pages this process has compared with them.

Opening a session must not read all of it. So a page's keys, its values and its summary have a
CRC-32 each, compared when they are first used. The table lies in a file of its own that is mapped
like the pages: what a killed process had written of both is there.
"""

import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.store.layout import layer_files

KEYS, VALUES, SUMMARY = range(3)
PARTS = ("keys", "values", "summaries")


def table_bytes(num_pages: int, num_layers: int) -> int:
    """Size of the file of checksums."""
    return num_pages * num_layers * len(PARTS) * 4


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

    def expect(self, first: int, last: int) -> None:
        """Pages [first, last) came from the files: compare them before they are used."""
        self._known[:, :, first:last] = False
        self._unknown[:] = (~self._known).sum(2)

    def settled(self, layer: int) -> bool:
        """True if no page of the layer is left to compare."""
        return not self._unknown[:, layer].any()

    def record(self, part: int, layer: int, first: int, rows: np.ndarray) -> None:
        """Write the checksums of pages just completed.

        Args:
            part: KEYS, VALUES or SUMMARY.
            layer: which layer.
            first: page of the first row.
            rows: uint8 [n, bytes of the part], each row contiguous.
        """
        last = first + len(rows)
        self._table[first:last, layer, part] = [zlib.crc32(row, self._seed) for row in rows]
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
        if not self._unknown[part, layer]:
            return
        known = self._known[part, layer]
        if pages is None:
            pages = np.flatnonzero(~known)
        else:
            pages = pages[(pages >= 0) & (pages < len(known))]
            pages = np.unique(pages[~known[pages]])
        expected = self._table[pages, layer, part]
        for page, checksum in zip(pages.tolist(), expected.tolist(), strict=True):
            if zlib.crc32(rows[page - first], self._seed) != checksum:
                raise DamagedSessionError(
                    f"the {PARTS[part]} of layer {layer}, page {page}, are damaged"
                )
        self._mark(part, layer, pages)

    def compare_rows(self, part: int, layer: int, first: int, rows: np.ndarray) -> None:
        """Compare pages [first, first + n), given uint8 [n, bytes of the part] of them."""
        self.compare(part, layer, np.arange(first, first + len(rows)), rows, first)

    def _mark(self, part: int, layer: int, pages: np.ndarray) -> None:
        known = self._known[part, layer]
        self._unknown[part, layer] -= np.count_nonzero(~known[pages])
        known[pages] = True

    def copy_from(self, other: "PageChecks", num_pages: int) -> None:
        """Take over the checksums of the first pages of a session with the same seed."""
        self._table[:num_pages] = other._table[:num_pages]


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
