"""What runs in a worker of a cluster: an engine, and the documents it was asked about last."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError, InputError
from hipcli.engine.events import Event, Notice
from hipcli.runs import jobs
from hipcli.runs.inquiry import Inquiry
from hipcli.runs.jobs import Answered, Job
from hipcli.terminal.console import Console
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import warning_row

if TYPE_CHECKING:
    from hipcli.engine.engine import Engine


class Worker:
    """Answers jobs, one after another.

    Args:
        settings: of the command.
        folder: where paths begin; the same on every host.
    """

    def __init__(self, settings: Settings, folder: str) -> None:
        self._settings = settings
        self._folder = folder
        self._stack = ExitStack()
        self._sources: tuple[str, ...] | None = None
        self._inquiry: Inquiry | None = None
        self._engine: Engine | None = None
        self._warnings: list[dict[str, str]] = []
        # Nobody sees what is said here: warnings travel with the answers.
        self._console = Console(None, None, None)
        self._view = ProgressView(self._console, shown=False)

    def pid(self) -> int:
        """Of the process."""
        return os.getpid()

    def answer(self, sources: tuple[str, ...], texts: list[str], job: Job) -> Answered:
        """Answers a job; documents that are open already are not read again.

        Args:
            sources: what it is about.
            texts: all questions about the same, so that the longest fits too.
        """
        try:
            with self._console.libraries_kept_quiet():
                inquiry = self._opened(sources, texts)
                return jobs.answer(inquiry, job, self._heard, self._warnings)
        except HipError as error:
            self._close()
            return jobs.failed(job, error)

    def _heard(self, event: Event) -> None:
        """Of all that the engine tells on the way, warnings are kept."""
        if isinstance(event, Notice):
            self._warnings.append(warning_row(event.code, event.message))

    def _opened(self, sources: tuple[str, ...], texts: list[str]) -> Inquiry:
        if self._inquiry is None or self._sources != sources:
            self._close()
            self._enter_folder()
            inquiry = Inquiry(
                self._console, self._settings, self._warnings.append, True, self._engine
            )
            self._stack.enter_context(inquiry)
            inquiry.open_documents(Sources(sources, None), self._view, texts)
            self._inquiry, self._engine, self._sources = inquiry, inquiry.engine, sources
        return self._inquiry

    def _enter_folder(self) -> None:
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise InputError(
                f"a worker has no folder {self._folder}: {error.strerror}",
                "documents must be at the same place on every host, as on a shared file system",
            ) from error

    def _close(self) -> None:
        self._stack.close()
        self._inquiry, self._sources = None, None
        self._warnings = []
