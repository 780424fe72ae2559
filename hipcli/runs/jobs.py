"""The lines of `hip ask --batch`: what is asked, about what, and what came of it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hipcli.engine.errors import DoesNotFitError, HipError, InputError, UsageError
from hipcli.engine.events import Event
from hipcli.runs.following import shown
from hipcli.terminal.formatting import one_line
from hipcli.terminal.output import error_row

if TYPE_CHECKING:
    from hipcli.citing.grounds import Citation
    from hipcli.runs.inquiry import Inquiry

_EXAMPLE = 'a line is {"question": "Who wrote it?"}'
_WITH_SOURCES = 'write {"question": "Who wrote it?", "sources": ["book.pdf"]}'


@dataclass(frozen=True, slots=True)
class Job:
    """One line of a file of questions.

    Args:
        line: its number, from 1.
        id: what the line calls itself: a string or a whole number; None if it doesn't.
        text: the question.
        sources: what it is about, as typed; None for what the command line names.
    """

    line: int
    id: str | int | None
    text: str
    sources: tuple[str, ...] | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """What every event about this question carries."""
        return {"line": self.line, "id": self.id}

    @property
    def about(self) -> dict[str, Any]:
        """The beginning of its row in the JSON document."""
        return {**self.labels, "question": self.text}


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs about the same documents, which are read once for all of them."""

    sources: tuple[str, ...] | None
    jobs: tuple[Job, ...]

    @property
    def texts(self) -> list[str]:
        return [job.text for job in self.jobs]


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a job.

    Args:
        job: which.
        document: its row: the answer's JSON document, or `error` in its place.
        citations: of the answer.
        error: why there is none.
        finish_reason: of the answer; empty with an error.
    """

    job: Job
    document: dict[str, Any]
    citations: tuple["Citation", ...] = ()
    error: HipError | None = None
    finish_reason: str = ""


def failed(job: Job, error: HipError) -> Answered:
    """A job without an answer."""
    return Answered(job, {**job.about, "error": error_row(error)}, error=error)


def answer(
    inquiry: "Inquiry",
    job: Job,
    show: Callable[[Event], None],
    warnings: Sequence[dict[str, str]],
) -> Answered:
    """Asks an open inquiry one question. One that does not fit leaves the others.

    Args:
        inquiry: about the job's documents.
        show: gets the engine's events.
        warnings: those of the documents, which may grow meanwhile.
    """
    began_s = time.perf_counter()
    try:
        result = shown(inquiry.ask(job.text), show)
    except DoesNotFitError as error:
        return failed(job, error)
    grounds = inquiry.grounds(job.text, result)
    document = inquiry.document(result, grounds, warnings, began_s)
    citations = tuple(grounds.citations)
    return Answered(job, {**job.about, **document}, citations, None, result.finish_reason)


def groups(jobs: Sequence[Job]) -> list[Group]:
    """Jobs by what they are about, in the order in which that is first named."""
    by_sources: dict[tuple[str, ...] | None, list[Job]] = {}
    for job in jobs:
        by_sources.setdefault(job.sources, []).append(job)
    return [Group(sources, tuple(found)) for sources, found in by_sources.items()]


def parse_jobs(content: bytes, name: str) -> tuple[Job, ...]:
    """The jobs of a JSONL file: a string a line, or an object with `question` and maybe `id` and
    `sources`.

    Empty lines are passed over; other keys of an object are left alone.

    Args:
        content: of the file.
        name: of the file, for errors.

    Raises:
        UsageError: a line that is no question, with its number.
        InputError: there is no question at all.
    """
    jobs = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            jobs.append(_job(line, number, f"{name}, line {number}"))
    if not jobs:
        raise InputError(f"no questions in {name}", _EXAMPLE)
    return tuple(jobs)


def _job(line: bytes, number: int, where: str) -> Job:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: not UTF-8 at byte {error.start + 1}", "save it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        hint = f'{_EXAMPLE} or "Who wrote it?"'
        raise UsageError(f"{where}: not JSON: {one_line(str(error))}", hint) from None
    given = {"question": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or "question" not in given:
        raise UsageError(f'{where}: no "question"', _EXAMPLE)
    text, label = given["question"], given.get("id")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where}: the question is empty or no string", "write it as a string")
    if isinstance(label, bool) or not isinstance(label, str | int | None):
        raise UsageError(f"{where}: the id is {label!r}", "it must be a string or a whole number")
    return Job(number, label, text, _sources(given.get("sources"), where))


def _sources(value: Any, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: the sources are no list of paths", _WITH_SOURCES)
    for path in value:
        if not isinstance(path, str) or not path:
            raise UsageError(f"{where}: the source {path!r} is no path", _WITH_SOURCES)
        if path == "-":
            raise UsageError(
                f"{where}: the source '-' is standard input, which one line cannot have",
                "save it to a file",
            )
    return tuple(value)
