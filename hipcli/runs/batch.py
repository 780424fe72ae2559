"""`hip ask --batch`: many questions, one reading of each set of documents. Each question is
independent of the others."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError
from hipcli.exit_codes import ExitCode, exit_code
from hipcli.runs import jobs
from hipcli.runs.asking import Run
from hipcli.runs.inquiry import Inquiry
from hipcli.runs.jobs import Answered, Group, Job
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import one_line
from hipcli.terminal.lanes import Lanes
from hipcli.terminal.output import SCHEMA_VERSION, Sink
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import Report

if TYPE_CHECKING:
    from hipcli.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs, and what those are about that do not say so themselves.

    Args:
        jobs: the questions.
        sources: what the command line names; None when all jobs have sources of their own, or a
            session is resumed.
        session: the session to resume: an id, the start of one, a name, or empty for the latest.
        unordered: answers are told as they come, not in the order of the jobs.
    """

    jobs: tuple[Job, ...]
    sources: Sources | None
    session: str | None
    unordered: bool = False


class BatchRun(Run):
    """All questions of a file, one after another, those about the same documents together.

    Args:
        batch: the questions, and what they are about.
    """

    def __init__(self, console: Console, settings: Settings, batch: Batch, sink: Sink) -> None:
        super().__init__(console, settings, sink, "ask")
        self._batch = batch
        self._answers: dict[int, dict[str, Any]] = {}
        self._code = ExitCode.OK
        self._place = {job.line: number for number, job in enumerate(batch.jobs)}
        separator = "\n" if settings.output_format == "text" else ""
        self._lanes = Lanes(sink, len(batch.jobs), not batch.unordered, separator)
        self._engine: Engine | None = None
        # Warnings about the documents that are open.
        self._of_group: list[dict[str, str]] = []

    def _work(self, view: ProgressView) -> int:
        try:
            self._answer_all(view)
        finally:
            view.stop()
            self._lanes.finish()
        if self._settings.output_format == "json":
            rows = [self._answers[line] for line in sorted(self._answers)]
            document = {"schema_version": SCHEMA_VERSION, "answers": rows}
            self._sink.write_json({**document, "warnings": self._warnings})
        return self._code

    def _answer_all(self, view: ProgressView) -> None:
        for group in jobs.groups(self._batch.jobs):
            try:
                self._answer_group(group, view)
            except HipError as error:
                # Documents that cannot be used are no matter of the jobs about others.
                if group.sources is None:
                    raise
                for job in group.jobs:
                    if job.line not in self._answers:
                        self._begin(job)
                        self._tell(jobs.failed(job, error))
            if self._code == ExitCode.INTERRUPTED:
                return

    def _answer_group(self, group: Group, view: ProgressView) -> None:
        self._of_group = []
        inquiry = Inquiry(self._console, self._settings, self._warn, True, self._engine)
        with inquiry:
            self._open(inquiry, group, view)
            self._engine = inquiry.engine
            for job in group.jobs:
                view.phase(f"question {len(self._answers) + 1} of {len(self._batch.jobs)}")
                self._begin(job)
                found = jobs.answer(
                    inquiry, job, lambda event: self._show(event, view), self._of_group
                )
                self._tell(found)
                if self._code == ExitCode.INTERRUPTED:
                    return

    def _open(self, inquiry: Inquiry, group: Group, view: ProgressView) -> None:
        if group.sources is not None:
            inquiry.open_documents(Sources(group.sources, None), view, group.texts)
        elif self._batch.sources is not None:
            inquiry.open_documents(self._batch.sources, view, group.texts)
        else:
            inquiry.open_session(self._batch.session or None, view, group.texts)

    def _warn(self, row: dict[str, str]) -> None:
        self._of_group.append(row)
        super()._warn(row)

    def _begin(self, job: Job) -> None:
        """From now on events are about `job`."""
        lane, settings = self._lanes.lane(self._place[job.line]), self._settings
        if settings.output_format == "text":
            lane.write(f"> {one_line(job.text)}\n")
        self._report = Report(lane, settings.output_format, settings.values["cite"], job.labels)

    def _tell(self, found: Answered) -> None:
        """What came of the job that was begun last."""
        job, error = found.job, found.error
        self._answers[job.line] = found.document
        if error is not None:
            self._code = self._code or exit_code(error.code)
            hint = f" ({error.hint})" if error.hint else ""
            self._console.line(f"error: line {job.line}: {error.message}{hint}")
            self._report.error(error)
        else:
            if found.finish_reason == "interrupted":
                self._code = ExitCode.INTERRUPTED
                if self._settings.output_format == "text":
                    raise KeyboardInterrupt
            if self._settings.output_format != "json":
                document = {**found.document}
                self._report.result(document, found.citations)
        self._lanes.close(self._place[job.line])
