"""Disks that fail: at a chosen change of a session's files something happens to the process."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from hipcli.engine.sessions.disk import Disk

CHANGES = (
    "make_folder",
    "write",
    "allocate",
    "copy",
    "gather",
    "link",
    "sync",
    "rename",
    "remove",
    "touch",
)


class FailingDisk(Disk):
    """A disk on which the change number `at` is struck, and the later ones too if `lasting`.

    Args:
        at: 0-based number of the change.
        strike: raises, or ends the process.
        after: True to strike when the change is done.
        lasting: True for a disk that stays full.
    """

    def __init__(
        self, at: int, strike: Callable[[], None], *, after: bool = False, lasting: bool = False
    ) -> None:
        self._at = at
        self._strike = strike
        self._after = after
        self._lasting = lasting
        self.changes = 0

    def _struck(self, number: int) -> bool:
        return number == self._at or (self._lasting and number > self._at)

    def _change(self, name: str, *words: Any, **named: Any) -> None:
        number, self.changes = self.changes, self.changes + 1
        if self._struck(number) and not self._after:
            self._strike()
        getattr(Disk, name)(self, *words, **named)
        if self._struck(number) and self._after:
            self._strike()


def _changing(name: str) -> Callable[..., None]:
    def change(self: FailingDisk, *words: Any, **named: Any) -> None:
        self._change(name, *words, **named)

    return change


for _name in CHANGES:
    setattr(FailingDisk, _name, _changing(_name))


class ShortDisk(Disk):
    """A disk that is full in the middle of write number `at`."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _put(self, fd: int, data: bytes) -> None:
        self._left -= 1
        if self._left == -1:
            os.write(fd, data[: len(data) // 2])
            full()
        super()._put(fd, data)


def full() -> None:
    """No space left."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only() -> None:
    """A read-only file system."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def killed() -> None:
    """kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
