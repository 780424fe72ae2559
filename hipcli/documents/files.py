"""Reading files without being led astray: regular files only, never a pipe or a device."""

import os
import stat
from typing import BinaryIO

from hipcli.documents.refusal import Refusal

# A file named on the command line may be large, but not without bound.
MAX_BYTES = 2 << 30
# Names of descriptors that are open already: what a shell passes for <(command).
DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)


def read_file(path: str, follow: bool) -> bytes:
    """All bytes of a regular file.

    Args:
        path: may hold surrogate escapes.
        follow: whether `path` may be a symbolic link.

    Raises:
        Refusal: it is missing, no regular file, larger than 2 GiB, or cannot be read.
    """
    try:
        # Looking first keeps pipes and devices from being opened at all; looking again at what
        # was opened keeps somebody from exchanging the file in between.
        _check_regular(os.stat(path) if follow else os.lstat(path))
        descriptor = os.open(path, _OPEN_FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
        with open(descriptor, "rb") as file:
            _check_regular(os.fstat(descriptor))
            return _read_bounded(file)
    except FileNotFoundError as error:
        raise Refusal("missing", "no such file or folder") from error
    except PermissionError as error:
        raise Refusal("unreadable", "permission denied") from error
    except (OSError, ValueError) as error:
        raise Refusal("unreadable", f"cannot be read: {_strerror(error)}") from error


def read_descriptor(path: str) -> bytes:
    """All bytes of an open descriptor such as /dev/fd/63, which a shell's <(command) names.

    Raises:
        Refusal: it cannot be read, or holds more than 2 GiB.
    """
    try:
        with open(path, "rb") as file:
            return _read_bounded(file)
    except OSError as error:
        raise Refusal("unreadable", f"cannot be read: {_strerror(error)}") from error


def _read_bounded(file: BinaryIO) -> bytes:
    # In pieces: a read of the limit itself would reserve that much memory for a file of a few
    # bytes, and the size that the system tells is wrong for pipes and for files that grow.
    pieces, num_bytes = [], 0
    while piece := file.read(1 << 22):
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > MAX_BYTES:
            raise Refusal("too_large", f"larger than {MAX_BYTES >> 30} GiB", status="skipped")
    return b"".join(pieces)


def _check_regular(info: os.stat_result) -> None:
    if stat.S_ISREG(info.st_mode):
        return
    for check, what in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if check(info.st_mode):
            raise Refusal("not_regular", f"{what}, not a regular file", status="skipped")
    raise Refusal("not_regular", "not a regular file", status="skipped")


def _strerror(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
