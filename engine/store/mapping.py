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
        self._address = self._map(None, self.num_bytes, flags, -1)
        self._finalizer = weakref.finalize(self, _libc.munmap, self._address, self.num_bytes)

    @staticmethod
    def _map(address: int | None, num_bytes: int, flags: int, fd: int) -> int:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        result = _libc.mmap(address, num_bytes, protection, flags, fd, 0)
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
        finally:
            os.close(fd)

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor over the start of the range; it keeps the range alive."""
        buffer = (ctypes.c_char * self.num_bytes).from_address(self._address)
        # frombuffer holds the buffer, the buffer holds the range.
        buffer.owner = self  # type: ignore[attr-defined]
        count = 1
        for size in shape:
            count *= size
        return torch.frombuffer(buffer, dtype=dtype, count=count).view(shape)
