"""One range of addresses whose first bytes are a file and whose rest is memory.

The pages of a session lie in files; the question and the answer that follow them do not. Mapping
both into one range lets every kernel see one tensor of pages, and a private mapping keeps what a
question writes into the last, half-filled page out of the file.

Python's own `mmap` cannot place a mapping at a chosen address, hence the four calls of libc.
POSIX only.
"""

import ctypes
import mmap
import os
import sys
import weakref
from pathlib import Path

import torch

from hipcli.engine.errors import HipError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# On Linux alone it lets go of a mapping's memory at once and keeps what a file holds.
_MADV_DONTNEED = 4 if sys.platform == "linux" else None
# Linux, the BSDs and macOS agree on this one.
_MADV_WILLNEED = 3
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_MAP_FAILED = ctypes.c_void_p(-1).value


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class AddressRange:
    """A reserved range of addresses, backed by memory where no file is mapped.

    Memory is taken only for what is written. The range is freed with the last tensor over it.

    Args:
        num_bytes: size of the range, rounded up to whole memory pages.

    Raises:
        HipError: the system refuses the range.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = _round_up(max(num_bytes, 1))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self._file_bytes = 0
        self._address = self._map(None, self.num_bytes, flags, -1)
        self._finalizer = weakref.finalize(self, _libc.munmap, self._address, self.num_bytes)

    @staticmethod
    def _map(address: int | None, num_bytes: int, flags: int, fd: int, offset: int = 0) -> int:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        result = _libc.mmap(address, num_bytes, protection, flags, fd, offset)
        if result == _MAP_FAILED:
            error = os.strerror(ctypes.get_errno())
            raise HipError(
                f"cannot map {num_bytes} bytes of memory: {error}",
                "free memory, or raise the limit on virtual memory (ulimit -v)",
            )
        return result

    def map_file(self, path: Path, num_bytes: int, *, shared: bool) -> None:
        """Put the first `num_bytes` of a file at the start of the range.

        Args:
            path: a file of at least `num_bytes` bytes.
            num_bytes: how much of it.
            shared: True writes through to the file; False keeps writes to this process.
        """
        if num_bytes == 0:
            return
        fd = os.open(path, os.O_RDWR if shared else os.O_RDONLY)
        try:
            if os.fstat(fd).st_size < num_bytes:
                # Touching a mapping beyond the end of its file kills the process.
                raise HipError(f"{path.name} is shorter than its {num_bytes} bytes")
            flags = _MAP_FIXED | (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE)
            self._map(self._address, _round_up(num_bytes), flags, fd)
            self._file_bytes = num_bytes
        finally:
            os.close(fd)

    def map_part(self, fd: int, offset: int) -> None:
        """Put a part of an open file under the whole range, which writes through to it.

        Args:
            fd: of a file that has `num_bytes` bytes from `offset` on; may be closed afterwards.
            offset: a multiple of the size of memory pages.
        """
        flags = _MAP_FIXED | mmap.MAP_SHARED
        self._map(self._address, self.num_bytes, flags, fd, offset)
        self._file_bytes = self.num_bytes

    @property
    def filed(self) -> tuple[int, int]:
        """Addresses [start, end) of what a file holds."""
        return self._address, self._address + self._file_bytes

    def let_go(self, num_bytes: int) -> None:
        """Give back the memory of the first bytes, as far as a file holds them.

        They are there as before when they are read again. What a private mapping was written to
        is lost: only bytes that are as in the file may be named.
        """
        whole = min(num_bytes, self._file_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if whole and _MADV_DONTNEED is not None:
            _libc.madvise(self._address, whole, _MADV_DONTNEED)

    def fetch(self, start: int, end: int) -> None:
        """Let the system read bytes [start, end) of the file, without waiting for them.

        A page fault reads what lies around it as well, as far as the system reads ahead: megabytes
        on some machines, for a few kilobytes that are wanted.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(end, self._file_bytes)
        if end > first:
            _libc.madvise(self._address + first, end - first, _MADV_WILLNEED)

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor over the start of the range; it keeps the range alive."""
        buffer = (ctypes.c_char * self.num_bytes).from_address(self._address)
        # frombuffer holds the buffer, the buffer holds the range.
        buffer.owner = self  # type: ignore[attr-defined]
        count = 1
        for size in shape:
            count *= size
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(shape)
