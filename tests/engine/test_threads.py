"""How many threads work and how they wait, unless the user settled it."""

from pathlib import Path

import pytest

from hipcli.engine.config import EngineConfig
from hipcli.engine.threads import SPIN_COUNT, most_threads, prepare_threads, usable_cores


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_the_users_choice_stays(
    given: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    environment = given | {"OMP_NUM_THREADS": "3"}
    prepare_threads(environment, tmp_path)
    assert environment == expected | {"OMP_NUM_THREADS": "3"}


def test_the_number_of_cores_is_told_to_openmp(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    prepare_threads(environment, tmp_path)
    assert environment.get("OMP_NUM_THREADS", "0") == str(usable_cores(tmp_path))


def machine(root: Path, files: dict[str, str]) -> Path:
    """A file system with eight processors on four cores, and these files."""
    for cpu in range(8):
        name = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        files = {name: f"{cpu % 4},{cpu % 4 + 4}\n", **files}
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


ALL = set(range(8))
V2 = {"proc/self/cgroup": "0::/system.slice/hip\n"}
V1 = {"proc/self/cgroup": "11:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n"}
V1_GROUP = "sys/fs/cgroup/cpu,cpuacct/docker"


@pytest.mark.parametrize(
    ("files", "cpus", "cores"),
    [
        ({}, ALL, 4),
        ({}, {0, 4}, 1),
        ({}, {0, 1, 5}, 2),
        (V2, ALL, 4),
        (V2 | {"sys/fs/cgroup/system.slice/hip/cpu.max": "max 100000\n"}, ALL, 4),
        (V2 | {"sys/fs/cgroup/system.slice/hip/cpu.max": "250000 100000\n"}, ALL, 2),
        (V2 | {"sys/fs/cgroup/system.slice/cpu.max": "300000 100000"}, ALL, 3),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000"}, ALL, 1),
        (V2 | {"sys/fs/cgroup/cpu.max": "900000 100000"}, ALL, 4),
        (V2 | {"sys/fs/cgroup/cpu.max": "nonsense"}, ALL, 4),
        (V2 | {"sys/fs/cgroup/cpu.max": "100000 0"}, ALL, 4),
        (
            V1
            | {f"{V1_GROUP}/abc/cpu.cfs_quota_us": "-1", f"{V1_GROUP}/abc/cpu.cfs_period_us": "5"},
            ALL,
            4,
        ),
        (
            V1
            | {
                f"{V1_GROUP}/abc/cpu.cfs_quota_us": "200000\n",
                f"{V1_GROUP}/abc/cpu.cfs_period_us": "100000\n",
            },
            ALL,
            2,
        ),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            ALL,
            1,
        ),
    ],
)
def test_cores_that_may_be_used(
    files: dict[str, str], cpus: set[int], cores: int, tmp_path: Path
) -> None:
    assert usable_cores(machine(tmp_path, files), cpus) == cores


def test_processors_nobody_describes_are_cores(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, {0, 1, 2}) == 3


def test_no_more_threads_than_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert [most_threads(asked) for asked in (1, 8, 9999, 10**12)] == [1, 8, 8, 8]
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert most_threads(3) == 3


def test_a_number_of_threads_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="threads is -1"):
        EngineConfig(Path("models"), threads=-1)
