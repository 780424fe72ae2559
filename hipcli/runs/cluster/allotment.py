"""Which worker does which job: those about the same documents go to the same worker, one reading.

A worker that dies loses its documents: what it had not answered goes to another one, which goes on
from the session. A job that has seen too many workers die is given up: it may be why they do.
"""

from collections import deque
from collections.abc import Sequence

from hipcli.runs.jobs import Group, Job

# A job is tried on so many workers.
MOST_TRIES = 3


class Allotment:
    """Jobs that wait, jobs that are being done.

    Args:
        groups: of jobs about the same documents.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._waiting = deque(groups)
        self._open: dict[str, Group] = {}
        self._left: dict[str, deque[Job]] = {}
        self._doing: dict[str, Job] = {}
        self._tries: dict[int, int] = {}

    def next_for(self, worker: str) -> tuple[Group, Job] | None:
        """The next job of a worker that is idle; None when there is none for it."""
        assert worker not in self._doing, worker
        if not self._left.get(worker):
            self._open.pop(worker, None)
            if not self._waiting:
                return None
            group = self._open[worker] = self._waiting.popleft()
            self._left[worker] = deque(group.jobs)
        job = self._left[worker].popleft()
        self._tries[job.line] = self._tries.get(job.line, 0) + 1
        self._doing[worker] = job
        return self._open[worker], job

    def done(self, worker: str) -> Job:
        """The worker's job is answered; which it was."""
        return self._doing.pop(worker)

    def died(self, worker: str) -> Job | None:
        """A worker is gone, and what it was doing and had to do waits again, before all else.

        Returns:
            The job that it was doing, if that is given up.
        """
        group = self._open.pop(worker, None)
        left = self._left.pop(worker, deque())
        job = self._doing.pop(worker, None)
        given_up = job is not None and self._tries[job.line] >= MOST_TRIES
        if job is not None and not given_up:
            left.appendleft(job)
        if group is not None and left:
            self._waiting.appendleft(Group(group.sources, tuple(left)))
        return job if given_up else None

    @property
    def finished(self) -> bool:
        """Nothing waits and nothing is being done."""
        return not (self._waiting or self._doing or any(self._left.values()))
