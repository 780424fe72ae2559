"""Locks between processes that end with the process that holds them, however that ends.

The lock is flock's; the file only carries it, and says who holds it. A file whose holder is gone
is free for the next one, so no lock is ever stale. Whoever releases a lock removes its file. On a
file system without locks (some network shares) every lock is granted.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path


def try_lock(path: Path, *, wait: bool = False) -> int | None:
    """Take the lock at `path`.

    Returns:
        What `release` needs, or None if another holds it and `wait` is False.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            granted = _flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(fd)
            raise
        if not granted:
            os.close(fd)
            return None
        if _is_file(fd, path):
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.write(fd, json.dumps([os.getpid(), socket.gethostname()]).encode())
            return fd
        # The last holder removed this file after we had opened it.
        os.close(fd)


def release(path: Path, fd: int) -> None:
    """Give the lock back."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(fd)


def holder(path: Path) -> str:
    """Who holds the lock at `path`, in words; empty if nobody does."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return ""
    try:
        if _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return ""
        return _named(os.pread(fd, 4096, 0))
    finally:
        os.close(fd)


def _flock(fd: int, operation: int) -> bool:
    """False if another holds the lock."""
    try:
        fcntl.flock(fd, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF):
            raise
    return True


def sweep(folder: Path) -> None:
    """Remove lock files whose holders were killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            path = Path(entry.path)
            fd = None
            with contextlib.suppress(OSError):
                fd = try_lock(path)
            if fd is not None:
                release(path, fd)


@contextlib.contextmanager
def held(path: Path, *, wait: bool) -> Iterator[bool]:
    """Within, the lock is ours if the value is True; it may be False unless `wait`."""
    fd = try_lock(path, wait=wait)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            release(path, fd)


class Lease:
    """Says that a folder is in use, as long as this object lives; any number may say so at once.

    Args:
        folder: in which nothing is written for it.

    Raises:
        OSError: the folder is not there, or is being removed.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        if not _flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
            raise BlockingIOError(errno.EWOULDBLOCK, "it is being removed", str(folder))

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Within, if the value is True, nobody has a lease of the folder or can get one."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield _flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _named(content: bytes) -> str:
    try:
        pid, host = json.loads(content)
    except (ValueError, TypeError, RecursionError):
        return "another process"
    here = host == socket.gethostname()
    return f"process {pid}" if here else f"process {pid} on {host}"
