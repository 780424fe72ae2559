"""Threads of matrix products: how many there are, and how they wait for work.

To be settled before torch is imported. One thread for each core that this process may use: the
second of a core's threads gains nothing in matrix products, and threads beyond a container's limit
are stopped in the middle of one while the others wait.
"""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath

# About 0.1 ms: longer than the gap between two operations of a layer.
SPIN_COUNT = "5000"


def prepare_threads(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Settle how many threads work, and let waiting ones spin shortly, then sleep.

    What the user settled stays. Threads that sleep at once cost a fifth of the speed of reading,
    threads that spin for long steal the processor from any other busy program (docs/log.md).
    OpenMP reads both when torch is first imported.

    Args:
        environment: of this process, and of those that it starts.
        root: of the file system, where Linux describes the machine.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    threads = usable_cores(root)
    if threads:
        environment.setdefault("OMP_NUM_THREADS", str(threads))


def most_threads(asked: int) -> int:
    """As many threads as were asked for, but no more than the machine has processors.

    Thousands of them wait for one another in each product, and nothing ever comes of it.
    """
    return min(asked, os.cpu_count() or asked)


def usable_cores(root: Path = Path("/"), cpus: set[int] | None = None) -> int:
    """Cores that this process may use, at least 1; 0 where the system does not tell.

    Args:
        root: of the file system.
        cpus: numbers of the processors it may run on; None asks the system.
    """
    if cpus is None:
        if not hasattr(os, "sched_getaffinity"):
            return 0
        cpus = os.sched_getaffinity(0)
    cores = {_siblings(root, cpu) for cpu in cpus}
    quotas = [quota for quota in _quotas(root) if quota > 0]
    return max(1, int(min([len(cores), *quotas])))


def _siblings(root: Path, cpu: int) -> str:
    """Names the core of a processor; processors that share a core have the same."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return _text(topology / "thread_siblings_list") or str(cpu)


def _quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time that each control group around this process allows."""
    groups = root / "sys/fs/cgroup"
    for row in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = row.partition(":")
        names, _, path = rest.partition(":")
        inside = PurePosixPath(path.lstrip("/"))
        # In a container its own group is often mounted as the root of all.
        folders = [inside, *inside.parents]
        if not names:
            for folder in folders:
                yield _part(*_text(groups / folder / "cpu.max").split()[:2])
        elif "cpu" in names.split(","):
            for folder in folders:
                group = groups / names / folder
                if not group.is_dir():
                    group = groups / "cpu" / folder
                yield _part(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))


def _part(quota: str = "", period: str = "") -> float:
    """Quota / period; 0 for no limit, or none that can be read."""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def quiet_transport(environment: MutableMapping[str, str]) -> None:
    """Keep PyTorch's transport from writing about lost connections: hip says what was lost.

    Read when torch is first imported.
    """
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
