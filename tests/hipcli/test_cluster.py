"""`hip ask --batch --cluster` on a real Ray with two workers, processes of their own."""

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hipcli import app
from hipcli.config.settings import Settings
from hipcli.engine.errors import SessionError
from hipcli.engine.sessions.manifest import read_sealed
from hipcli.runs.cluster.ray_cluster import _shares
from hipcli.terminal.console import Console
from tests.engine.models import toy_models
from tests.hipcli.fakes import run_hip

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (hipcli[cluster])"
)
ROOT = Path(__file__).parents[2]
BATCH = ["ask", "--batch", "jobs.jsonl", "--jsonl", "-n", "8"]
CLUSTER = ["--cluster", "local", "--workers", "2"]
ENOUGH_S = 120.0
# As the command does, and not `python -m`, which looks for modules in the current folder.
HIP = "import runpy; runpy.run_module('hipcli', run_name='__main__', alter_sys=True)"


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, two long books, and questions about them."""
    folder = tmp_path_factory.mktemp("cluster")
    toy_models.llama(folder / "model")
    jobs = []
    for number in range(2):
        name = f"book{number}.txt"
        line = f"Letter {number} from Ada to Charles, sent in June.\n"
        (folder / name).write_text(line * 700)
        jobs += [{"question": f"{word}?", "sources": [name]} for word in ("Who", "Where")]
    jobs = [jobs[0], jobs[2], jobs[1], jobs[3], {"question": "Why?", "sources": ["none.txt"]}]
    # What lies in the folder that is read is never run.
    (folder / "torch.py").write_text("raise SystemExit(3)\n")
    (folder / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    yield folder


def start(kitchen: Path, cache: Path, words: list[str]) -> subprocess.Popen:
    """`hip` in a process of its own; what it makes in passing goes to a folder beside its cache."""
    temporary = cache.parent / "t"
    temporary.mkdir(exist_ok=True)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(kitchen),
        "HIP_MODEL": "model",
        "HIP_DEVICE": "cpu",
        "HIP_CACHE_DIR": str(cache),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "XDG_CONFIG_HOME": str(kitchen),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.path.remove(''); " + HIP, *words],
        cwd=kitchen, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def alone(monkeypatch: pytest.MonkeyPatch) -> str:
    """What the same jobs bring without a cluster."""
    monkeypatch.setenv("HIP_MODEL", "model")
    monkeypatch.setenv("HIP_DEVICE", "cpu")
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8")
    assert app.run(BATCH, Console(None, out, io.StringIO())) == 3
    out.flush()
    return raw.getvalue().decode()


def children(pid: int) -> dict[int, str]:
    """Processes under `pid`, with their command lines."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rsplit(")")[-1].split()[1]
                )
                names[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    found: dict[int, str] = {}
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found.keys()
        found |= {child: names.get(child, "") for child in frontier}
    return found


def working(hip: subprocess.Popen, cache: Path) -> int:
    """Waits until a worker is in the midst of reading and has saved a part; its process id."""
    until = time.monotonic() + ENOUGH_S
    while time.monotonic() < until and hip.poll() is None:
        for progress in cache.glob("sessions/*.partial/progress.json"):
            lock = cache / "locks" / (progress.parent.name.removesuffix(".partial") + ".lock")
            with contextlib.suppress(OSError, ValueError, SessionError):
                if read_sealed(progress)["tokens_done"] > 0:
                    return int(json.loads(lock.read_text())[0])
        time.sleep(0.01)
    raise AssertionError(hip.communicate(timeout=10))


def rows(out: str) -> list[tuple]:
    """Every line is JSON; of answers and errors what does not depend on who gave them."""
    events = [json.loads(line) for line in out.splitlines()]
    return [
        (event.get("line"), event.get("answer"), event.get("error", {}).get("code"))
        for event in events
        if event["event"] in ("result", "error")
    ]


@needs_ray
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_worker_changes_no_answer(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hip = start(kitchen, tmp_path / "cache", [*BATCH, *CLUSTER])
    os.kill(working(hip, tmp_path / "cache"), signal.SIGKILL)
    out, err = hip.communicate(timeout=ENOUGH_S)
    assert "died; another one goes on from what it had read" in err, err
    assert "Traceback" not in err
    assert hip.returncode == 3, err
    monkeypatch.chdir(kitchen)
    assert rows(out) == rows(alone(monkeypatch))
    assert [row[0] for row in rows(out)] == [1, 2, 3, 4, 5]
    # What was read before the kill was not read again: of a book's first question, which nobody
    # else has read.
    results = [json.loads(line) for line in out.splitlines()]
    first = [row for row in results if row["event"] == "result" and row["line"] in (1, 2)]
    assert sorted(row["usage"]["cached_tokens"] > 0 for row in first) == [False, True]
    # Nothing of Ray is left on the disk.
    assert list((tmp_path / "t").glob("hip-ray-*")) == []


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_signal_ends_all_workers(kitchen: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    hip = start(kitchen, cache, [*BATCH, *CLUSTER])
    working(hip, cache)
    below = children(hip.pid)
    os.kill(hip.pid, signal.SIGTERM)
    out, err = hip.communicate(timeout=ENOUGH_S)
    assert hip.returncode == 143, err
    assert err.splitlines()[-1].startswith("Terminated: what the workers read is saved"), err
    assert rows(out) == [(None, None, "terminated")]
    # Processes that end a moment after their parent are given that moment.
    until = time.monotonic() + 5
    while [pid for pid in below if running(pid)] and time.monotonic() < until:
        time.sleep(0.05)
    assert [below[pid] for pid in below if running(pid)] == []
    # What was read is kept, and can be gone on with.
    assert list(cache.glob("sessions/*"))


class Hosts:
    """As much of Ray as tells what its hosts have, each (processors, GPUs)."""

    def __init__(self, *hosts: tuple[int, int]) -> None:
        self._hosts = hosts

    def nodes(self) -> list[dict]:
        made = [
            {
                "Alive": True,
                "Resources": {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {}),
            }
            for cpus, gpus in self._hosts
        ]
        return [*made, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]


@pytest.mark.parametrize(
    "hosts, wanted, groups, expected",
    [
        # One worker has one host's processors, not those of both.
        ([(4, 0), (4, 0)], 1, 9, (1, {"num_cpus": 4.0})),
        # Two of three processors each would leave the third worker waiting for ever.
        ([(3, 0), (3, 0)], 3, 9, (3, {"num_cpus": 1.0})),
        ([(8, 0)], 0, 9, (2, {"num_cpus": 4.0})),
        ([(1, 0)], 2, 9, (2, {"num_cpus": 0.5})),
        ([(1, 0), (0, 0)], 3, 2, (2, {"num_cpus": 0.5})),
        # Two thirds of a GPU each have room for two workers only.
        ([(16, 2)], 3, 9, (3, {"num_cpus": 4.0, "num_gpus": 0.5})),
        ([(16, 2)], 0, 9, (2, {"num_cpus": 8.0, "num_gpus": 1.0})),
        ([(64, 0), (8, 1)], 0, 9, (1, {"num_cpus": 8.0, "num_gpus": 1.0})),
        # A context of one worker lies on one GPU, however many there are.
        ([(16, 4)], 2, 9, (2, {"num_cpus": 4.0, "num_gpus": 1.0})),
    ],
)
def test_all_workers_have_room_at_once(hosts, wanted, groups, expected) -> None:
    settings = Settings({"device": "auto"}, {})
    assert _shares(Hosts(*hosts), settings, wanted, groups) == expected


def running(pid: int) -> bool:
    """A process that has ended and that nobody has asked about is not running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("hipcli.runs.opening.ensure_model", lambda *_: None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    Path("a.txt").write_text("A letter from Ada.\n")
    Path("jobs.jsonl").write_text('{"question": "Who?", "sources": ["a.txt"]}\n')
    outcome = run_hip("ask", "--batch", "jobs.jsonl", "--cluster", "auto")
    assert (outcome.code, outcome.out) == (2, "")
    assert 'pip install "hipcli[cluster]"' in outcome.err
