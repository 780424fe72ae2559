"""`hip ask --batch`: many questions, one reading. Each is independent of the others."""

import json
import time
from dataclasses import dataclass
from typing import Any

from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import DoesNotFitError, InputError, UsageError
from hipcli.exit_codes import ExitCode, exit_code
from hipcli.runs.asking import Run
from hipcli.runs.following import shown
from hipcli.runs.inquiry import Inquiry
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import one_line
from hipcli.terminal.output import SCHEMA_VERSION, Sink, error_row
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import Report


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """One line of a file of questions.

    Args:
        line: its number, from 1.
        id: what the line calls itself: a string or a whole number; None if it doesn't.
        text: the question.
    """

    line: int
    id: str | int | None
    text: str

    @property
    def labels(self) -> dict[str, Any]:
        """What every event about this question carries."""
        return {"line": self.line, "id": self.id}


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions, and what they are about: `sources`, or the session called `session`."""

    questions: tuple[BatchQuestion, ...]
    sources: Sources | None
    session: str | None


def parse_questions(content: bytes, name: str) -> tuple[BatchQuestion, ...]:
    """The questions of a JSONL file: a string a line, or an object with `question` and maybe `id`.

    Empty lines are passed over; other keys of an object are left alone.

    Args:
        content: of the file.
        name: of the file, for errors.

    Raises:
        UsageError: a line that is no question, with its number.
        InputError: there is no question at all.
    """
    questions = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            questions.append(_question(line, number, f"{name}, line {number}"))
    if not questions:
        raise InputError(f"no questions in {name}", 'a line is {"question": "Who wrote it?"}')
    return tuple(questions)


def _question(line: bytes, number: int, where: str) -> BatchQuestion:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{where}: not UTF-8 at byte {error.start + 1}", "save it as UTF-8"
        ) from None
    except ValueError as error:
        hint = 'a line is {"question": "Who wrote it?"} or "Who wrote it?"'
        raise UsageError(f"{where}: not JSON: {one_line(str(error))}", hint) from None
    given = {"question": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or "question" not in given:
        raise UsageError(f'{where}: no "question"', 'a line is {"question": "Who wrote it?"}')
    text, label = given["question"], given.get("id")
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where}: the question is empty or no string", "write it as a string")
    if isinstance(label, bool) or not isinstance(label, str | int | None):
        raise UsageError(f"{where}: the id is {label!r}", "it must be a string or a whole number")
    return BatchQuestion(number, label, text)


class BatchRun(Run):
    """All questions of a file, one after another.

    Args:
        batch: the questions, and what they are about.
    """

    def __init__(self, console: Console, settings: Settings, batch: Batch, sink: Sink) -> None:
        super().__init__(console, settings, sink, "ask")
        self._batch = batch
        self._answers: list[dict[str, Any]] = []
        self._code = ExitCode.OK

    def _work(self, view: ProgressView) -> int:
        questions = self._batch.questions
        with Inquiry(self._console, self._settings, self._warn, many=True) as inquiry:
            texts = [question.text for question in questions]
            if self._batch.sources is not None:
                inquiry.open_documents(self._batch.sources, view, texts)
            else:
                inquiry.open_session(self._batch.session or None, view, texts)
            for question in questions:
                view.phase(f"question {len(self._answers) + 1} of {len(questions)}")
                self._answer(question, inquiry, view)
                if self._code == ExitCode.INTERRUPTED:
                    break
        view.stop()
        if self._settings.output_format == "json":
            document = {"schema_version": SCHEMA_VERSION, "answers": self._answers}
            self._sink.write_json({**document, "warnings": self._warnings})
        return self._code

    def _answer(self, question: BatchQuestion, inquiry: Inquiry, view: ProgressView) -> None:
        """Asks one question; one that does not fit is reported, and the others still come."""
        settings, began_s = self._settings, time.perf_counter()
        is_text = settings.output_format == "text"
        if is_text:
            space = "\n" if self._answers else ""
            self._sink.write(f"{space}> {one_line(question.text)}\n")
        cite = settings.values["cite"]
        self._report = Report(self._sink, settings.output_format, cite, question.labels)
        about = {**question.labels, "question": question.text}
        try:
            result = shown(inquiry.ask(question.text), lambda event: self._show(event, view))
        except DoesNotFitError as error:
            self._code = self._code or exit_code(error.code)
            self._console.line(f"error: line {question.line}: {error.message} ({error.hint})")
            self._report.error(error)
            self._answers.append({**about, "error": error_row(error)})
            return
        if result.finish_reason == "interrupted":
            self._code = ExitCode.INTERRUPTED
            if is_text:
                raise KeyboardInterrupt
        grounds = inquiry.grounds(question.text, result)
        document = inquiry.document(result, grounds, self._warnings, began_s)
        document = {**about, **document}
        self._answers.append(document)
        if settings.output_format != "json":
            self._report.result(document, grounds.citations)
