"""Every change that sessions make to the disk, in one place.

So what happens when one of them fails can be tried out: a test hands in a `Disk` that fails. Pages
are not written here but through their mapping, into blocks that `allocate` took beforehand.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

from hipcli.engine.sessions import locks

NEW_SUFFIX = ".new"
TRASH_SUFFIX = ".trash"
COPIED_BYTES = 8 << 20


class Disk:
    """Changes to files and folders; each raises OSError and leaves nothing half done behind."""

    def make_folder(self, path: Path) -> None:
        """A folder private to the user, and the folders above it."""
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Replace `path`: a reader sees the old file or the new one, never half of one."""
        temporary = path.with_name(path.name + NEW_SUFFIX)
        # Another process may write the same file: one after the other, or a reader sees halves.
        fd = locks.try_lock(temporary, wait=True)
        assert fd is not None, "it was waited for"
        try:
            # Who holds the lock stands there, or what a killed process left.
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            self._put(fd, data)
            if sync:
                os.fsync(fd)
            os.replace(temporary, path)
        except BaseException:
            locks.release(temporary, fd)
            raise
        os.close(fd)

    def _put(self, fd: int, data: bytes) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def allocate(self, path: Path, num_bytes: int) -> None:
        """A file of zeros whose blocks are there: a full disk shows now, not as SIGBUS later."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, num_bytes)
            else:
                os.ftruncate(fd, num_bytes)
        finally:
            os.close(fd)

    def unnamed(self, folder: Path, num_bytes: int) -> int:
        """An open file of zeros that no folder lists: it is gone once nothing uses it.

        Returns:
            Its descriptor, to be closed by the caller.
        """
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            else:
                os.ftruncate(file.fileno(), num_bytes)
            return os.dup(file.fileno())

    def copy(self, source: Path, target: Path, num_bytes: int) -> None:
        """The first `num_bytes` of `source` become those of `target`, which is there already."""
        self.gather(source, target, [(0, num_bytes)])

    def gather(self, source: Path, target: Path, parts: Sequence[tuple[int, int]]) -> None:
        """Parts (offset, bytes) of `source`, one behind the other, become the start of `target`."""
        fd = os.open(target, os.O_WRONLY)
        try:
            with open(source, "rb", buffering=0) as reader:
                for part in parts:
                    self._append(fd, reader, *part)
        finally:
            os.close(fd)

    def _append(self, fd: int, reader: FileIO, offset: int, num_bytes: int) -> None:
        """Write a part of an open file."""
        reader.seek(offset)
        while num_bytes > 0:
            piece = reader.read(min(num_bytes, COPIED_BYTES))
            if not piece:
                raise OSError(f"{reader.name} is shorter than it was")
            self._put(fd, piece)
            num_bytes -= len(piece)

    def link(self, source: Path, target: Path) -> None:
        """`target` is the same file as `source`; a copy where the file system has no links."""
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
            os.chmod(target, 0o600)

    def sync(self, path: Path) -> None:
        """Wait until a file, or the list of names in a folder, would survive a power cut."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a folder; `target` is not there."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file or a folder, which is gone at once or stays whole.

        Raises:
            OSError: it stays.
        """
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
        trash = path.with_name(f"{path.name}.{time.time_ns()}{TRASH_SUFFIX}")
        os.rename(path, trash)
        shutil.rmtree(trash, ignore_errors=True)

    def touch(self, path: Path, time_ns: int) -> None:
        """Set when a folder was used last."""
        os.utime(path, ns=(time_ns, time_ns))
