"""`hip ask --batch --cluster`: the jobs of a file on many workers, their answers on one stream."""

from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError, UsageError
from hipcli.runs import jobs, opening
from hipcli.runs.batch import Batch, BatchRun
from hipcli.runs.cluster.allotment import MOST_TRIES, Allotment
from hipcli.runs.cluster.ray_cluster import RayCluster, Where, WorkerDiedError, joined
from hipcli.runs.jobs import Answered, Group
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import plural
from hipcli.terminal.output import Sink
from hipcli.terminal.progress import ProgressView

__all__ = ["ClusterRun", "Where"]


class ClusterRun(BatchRun):
    """All questions of a file, each set of documents by one worker of a cluster.

    Args:
        where: the cluster.
    """

    _all_read = "what the workers read is saved; the same command goes on from there"

    def __init__(
        self, console: Console, settings: Settings, batch: Batch, sink: Sink, where: Where
    ) -> None:
        super().__init__(console, settings, batch, sink)
        self._where = where
        self._done = 0
        self._workers = ""

    def _kept_in_words(self) -> str:
        return "" if self._settings.values["no_cache"] else self._all_read

    def _answer_all(self, view: ProgressView) -> None:
        given = self._batch.sources
        if given is not None and given.stdin is not None:
            raise UsageError(
                "--cluster and documents on standard input exclude one another",
                "save them to a file that every host can read",
            )
        config = self._settings.engine_config()
        opening.require_model(config)
        opening.ensure_model(self._console, config, view)
        groups = jobs.groups(self._batch.jobs)
        view.phase("joining the cluster")
        with joined(self._settings, self._where, len(groups)) as (cluster, count):
            idle = [cluster.start_worker() for _ in range(count)]
            self._spread(Allotment(groups), cluster, idle, view)

    def _spread(
        self, allotment: Allotment, cluster: RayCluster, idle: list[str], view: ProgressView
    ) -> None:
        """Until every job is answered or given up."""
        self._workers = plural(len(idle), "worker")
        view.answers(self._done, len(self._batch.jobs), self._workers)
        while True:
            for name in list(idle):
                found = allotment.next_for(name)
                if found is not None:
                    idle.remove(name)
                    group, job = found
                    cluster.ask(name, self._sources(group), group, job)
            if allotment.finished:
                return
            for name, outcome in cluster.wait():
                if isinstance(outcome, WorkerDiedError):
                    idle.append(self._replace(name, allotment, cluster, view))
                    continue
                job = allotment.done(name)
                if isinstance(outcome, HipError):
                    outcome = jobs.failed(job, outcome)
                self._receive(outcome, view)
                idle.append(name)

    def _replace(
        self, name: str, allotment: Allotment, cluster: RayCluster, view: ProgressView
    ) -> str:
        """A worker is dead: another one takes its place and its jobs."""
        cluster.forget(name)
        given_up = allotment.died(name)
        if given_up is None:
            self._console.note(f"{name} died; another one goes on from what it had read")
        else:
            error = HipError(
                f"{MOST_TRIES} workers died of this question",
                "see whether its documents fit the memory: hip ask without --cluster tells",
            )
            self._receive(jobs.failed(given_up, error), view)
        return cluster.start_worker()

    def _sources(self, group: Group) -> tuple[str, ...]:
        if group.sources is not None:
            return group.sources
        assert self._batch.sources is not None
        return self._batch.sources.names

    def _receive(self, found: Answered, view: ProgressView) -> None:
        self._done += 1
        if self._settings.output_format == "text" and self._console.stdout_is_terminal:
            view.stop()
        view.answers(self._done, len(self._batch.jobs), self._workers)
        for row in found.document.get("warnings", ()):
            if row not in self._warnings:
                self._warn(row)
        self._begin(found.job)
        self._tell(found)
