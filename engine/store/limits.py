"""How much memory keys and values may take on a CPU before they are left to their files.

Pages that lie in mapped files count as the process's own once they are touched, although the system
can take them back. Under a limit hip gives them back itself: what is needed again comes from the
system's cache, or from the disk if other programs needed that memory.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hipcli.engine.resident import resident_bytes

# Of what the machine has free, without a limit of the user's.
FREE_PART = 0.8


@dataclass(frozen=True, slots=True)
class HostLimit:
    """A limit on the memory of the process.

    Args:
        num_bytes: most that it should take, pages included.
        folder: where pages lie that no session holds, once they do not fit.
    """

    num_bytes: int
    folder: Path

    @classmethod
    def of(cls, num_bytes: int, folder: Path) -> "HostLimit | None":
        """The user's limit, or for 0 most of what is free; None where the system does not say.

        A folder that is not there, or not ours to write in, gives way to the one above it, and that
        to the system's own for temporary files, which may be small or itself memory.
        """
        if not num_bytes:
            free = available_bytes()
            if free is None:
                return None
            num_bytes = resident_bytes() + int(FREE_PART * free)
        usable = (
            path for path in (folder, folder.parent) if path.is_dir() and os.access(path, os.W_OK)
        )
        return cls(num_bytes, next(usable, temporary_folder()))

    @property
    def room_bytes(self) -> int:
        """What the process may still take."""
        return self.num_bytes - resident_bytes()

    def holds(self, num_bytes: int) -> bool:
        """True if so much more fits, and the quarter that `reached` keeps free stays free."""
        return num_bytes < self.room_bytes - self.num_bytes // 4

    def reached(self, spare_bytes: int) -> bool:
        """True if less is left than what is about to be touched, or than a quarter.

        A quarter: what is computed on the way needs memory too, some 200 MiB at a time.
        """
        return self.room_bytes < max(spare_bytes, self.num_bytes // 4)


def temporary_folder() -> Path:
    """The system's own for temporary files."""
    return Path(tempfile.gettempdir())


def available_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be taken without harm: the machine's, or less in a container.

    Args:
        root: where the system's own files lie.
    """
    found = []
    try:
        text = (root / "proc/meminfo").read_text("ascii")
        line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    group = root / "sys/fs/cgroup"
    for most, taken, kept in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            # "max" is no number, and no limit.
            limit, used = (int((group / name).read_text("ascii")) for name in (most, taken))
            found.append(max(limit - used + _cached_bytes(group / kept), 0))
        except (OSError, ValueError, IndexError):
            continue
    return min(found, default=None)


def _cached_bytes(stat: Path) -> int:
    """What of a group's memory holds files that nothing uses just now: free when it is needed."""
    rows = (line.split() for line in stat.read_text("ascii").splitlines())
    return next((int(row[1]) for row in rows if row[0].endswith("inactive_file")), 0)
