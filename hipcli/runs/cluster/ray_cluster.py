"""The seam to Ray: a cluster that is joined or started, its workers, and their end.

Ray carries messages and watches processes. It says nothing on stdout, counts no usage, shows no
dashboard, and what it writes to disk is removed with the cluster that was started here. It
serialises its own messages between processes of one version; none of that reaches a file.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hipcli.config import options
from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError, UsageError
from hipcli.runs.cluster.worker import Worker
from hipcli.runs.jobs import Answered, Group, Job

# Of a cluster that is started here: answers are small, and nothing else is shared.
_OBJECT_STORE_BYTES = 100 << 20
_CPUS_PER_WORKER = 4
# Paths of sockets have at most 107 bytes, and Ray's take half of them.
_LONGEST_FOLDER = 40
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Where:
    """Which cluster, and how much of it.

    Args:
        address: auto, local, or what Ray takes.
        workers: how many; 0 for as many as there are GPUs, or else four processors each.
    """

    address: str
    workers: int


class WorkerDiedError(Exception):
    """A worker's process is gone."""


class RayCluster:
    """Workers by name, each at one job at a time.

    Args:
        ray: the module.
        settings: of the command.
        share: processors and GPUs of each worker.
    """

    def __init__(self, ray: Any, settings: Settings, share: dict[str, float]) -> None:
        self._ray = ray
        self._settings = _portable(settings)
        self._share = share
        self._actors: dict[str, Any] = {}
        self._started = 0
        self._pending: dict[Any, str] = {}

    def start_worker(self) -> str:
        """A new worker; its name."""
        self._started += 1
        name = f"worker {self._started}"
        made = self._ray.remote(Worker).options(max_restarts=0, max_task_retries=0, **self._share)
        self._actors[name] = made.remote(self._settings, os.getcwd())
        return name

    def ask(self, name: str, sources: tuple[str, ...], group: Group, job: Job) -> None:
        """Gives an idle worker a job."""
        reference = self._actors[name].answer.remote(sources, group.texts, job)
        self._pending[reference] = name

    def wait(self) -> list[tuple[str, Answered | WorkerDiedError | HipError]]:
        """What has come after a moment at most: of which worker, its answer or why it has none."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=_LOOK_S)
        return [(self._pending.pop(reference), self._got(reference)) for reference in ready]

    def _got(self, reference: Any) -> Answered | WorkerDiedError | HipError:
        try:
            answered: Answered = self._ray.get(reference)
            return answered
        except self._ray.exceptions.RayActorError as error:
            return WorkerDiedError(str(error))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if error.cause is not None else error
            return HipError(
                f"a worker failed: {type(cause).__name__}: {cause}", "run again with --debug"
            )

    def forget(self, name: str) -> None:
        """That worker is dead."""
        del self._actors[name]

    def kill(self) -> None:
        """Ends all workers at once; what they had read stays in their sessions."""
        for actor in self._actors.values():
            with suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        self._actors.clear()


@contextmanager
def joined(settings: Settings, where: Where, groups: int) -> Iterator[tuple[RayCluster, int]]:
    """Within, there is a cluster, and so many workers can be started on it.

    Args:
        groups: sets of documents: more workers than these would have nothing to do.

    Raises:
        UsageError: Ray is not installed.
        HipError: there is no cluster at the address, or none can be started.
    """
    ray = _ray()
    folder = None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    here = os.getcwd()
    try:
        try:
            # Workers look for modules where they were started first: not in a folder that is read.
            os.chdir(os.sep)
            folder = _connect(ray, where.address)
        finally:
            os.chdir(here)
            # Ray takes SIGTERM for itself; here it means what it means to every command.
            for number, handler in handlers.items():
                with suppress(ValueError):
                    signal.signal(number, handler)
        count, share = _shares(ray, settings, where.workers, groups)
        cluster = RayCluster(ray, settings, share)
        try:
            yield cluster, count
        finally:
            cluster.kill()
    finally:
        with suppress(Exception):
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _portable(settings: Settings) -> Settings:
    """Settings that can leave the process: the options alone, none of what came with them."""
    names = {option.name for option in options.ALL}
    values = {name: value for name, value in settings.values.items() if name in names}
    return Settings(values, dict(settings.sources))


def _ray() -> Any:
    environment = options.process_environment()
    # Read when Ray is imported and by the processes it starts.
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            "--cluster needs Ray, which is not installed",
            'pip install "hipcli[cluster]", or leave --cluster out',
        ) from error
    return ray


def _connect(ray: Any, address: str) -> str | None:
    """Joins the cluster at `address`, or starts one; returns the folder of one started here."""
    import logging

    usual = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address != "local":
        try:
            ray.init(address=address, **usual)
            return None
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address != "auto":
                raise HipError(
                    f"no Ray cluster at {address}: {error}",
                    "is it running? One that asks for a token needs RAY_AUTH_MODE=token",
                ) from error
    base = tempfile.gettempdir()
    folder = tempfile.mkdtemp(
        prefix="hip-ray-", dir=base if len(base) < _LONGEST_FOLDER else "/tmp"
    )
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=folder,
            **usual,
        )
    except BaseException as error:
        with suppress(Exception):
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Exception):
            raise HipError(
                f"Ray cannot be started here: {error}", "see: ray start --head"
            ) from error
        raise
    return folder


def _shares(ray: Any, settings: Settings, wanted: int, groups: int) -> tuple[int, dict[str, float]]:
    """How many workers, and what each of them takes: so much that all of them can run at once.

    A worker runs on one host, so what hosts have together says too little.
    """
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = [int(host.get("CPU", 0)) for host in there]
    gpus = [int(host.get("GPU", 0)) for host in there]
    on_gpus = sum(gpus) > 0 and settings.values["device"] != "cpu"
    usual = sum(gpus) if on_gpus else max(1, sum(cpus) // _CPUS_PER_WORKER)
    count = max(1, min(wanted or usual, groups))
    if not on_gpus:
        return count, {"num_cpus": _largest_share(cpus, count)}
    # A model that is asked of more workers than there are GPUs shares them.
    share = min(1.0, _largest_share(gpus, count))
    # Processors of the hosts that have GPUs, for as many workers as these have room for.
    room = [int(host / share + 1e-9) for host in gpus]
    least = min(host / many for host, many in zip(cpus, room, strict=True) if many)
    return count, {"num_cpus": float(int(least)) if least >= 1 else least, "num_gpus": share}


def _largest_share(hosts: Sequence[int], count: int) -> float:
    """The most that each of `count` workers can take of hosts with so much each: a whole number,
    or one nth."""
    for share in range(max(hosts, default=0), 0, -1):
        if sum(host // share for host in hosts) >= count:
            return float(share)
    # Each of them parted among as many workers as it takes.
    return 1 / max(1, -(-count // max(1, sum(hosts))))
