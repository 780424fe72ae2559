"""Pages that lie on the disk alone: in a session's files, or in one file of their own."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.store.copying import read_whole, write_whole


class DiskPages:
    """Records of pages in files, read and written by their place.

    Args:
        page_bytes: of one record.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._files: list[int] = []
        self._offsets: list[int] = []

    def __del__(self) -> None:
        self.close()

    @property
    def there(self) -> bool:
        """Some file takes the pages."""
        return bool(self._files)

    def close(self) -> None:
        """Let go of the files."""
        for fd in set(self._files):
            os.close(fd)
        self._files, self._offsets = [], []

    def open_session(self, paths: Iterable[Path], *, writable: bool) -> None:
        """Use a session's files, one a layer; they are kept open should the session go."""
        self.close()
        for path in paths:
            self._files.append(os.open(path, os.O_RDWR if writable else os.O_RDONLY))
            self._offsets.append(0)

    def use(self, fd: int, first: int, num_pages: int, num_layers: int) -> None:
        """Use one open file that has pages [first, first + num_pages) of all layers in turn."""
        self.close()
        self._files = [os.dup(fd)] * num_layers
        size = num_pages * self._page_bytes
        self._offsets = [layer * size - first * self._page_bytes for layer in range(num_layers)]

    def read(self, layer: int, page: int, row: np.ndarray) -> None:
        """Read records from `page` on into uint8 [n, page_bytes].

        Raises:
            DamagedSessionError: the file is shorter than it was, or cannot be read.
        """
        offset = self._offsets[layer] + page * self._page_bytes
        try:
            read_whole(self._files[layer], row.data.cast("B"), offset, "its file")
        except OSError as error:
            raise DamagedSessionError(
                f"page {page} of layer {layer} cannot be read: {error}"
            ) from None

    def write(self, layer: int, page: int, rows: np.ndarray) -> None:
        """Write records from `page` on. Raises OSError."""
        offset = self._offsets[layer] + page * self._page_bytes
        write_whole(self._files[layer], rows.data.cast("B"), offset)
