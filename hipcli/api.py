"""hip for Python programs: what `hip ask` does, without a terminal.

    import hipcli

    with hipcli.open("book.pdf", "notes/") as book:
        answer = book.ask("Who wrote the letter?")
        for piece in answer:
            print(piece, end="", flush=True)
        for passage in answer.evidence:
            print(passage["path"], passage["page"], passage["line_start"])
        print(book.ask("And when?").text)

The engine, the sessions and the settings are those of the command: options of `hip ask` are
keywords, environment variables and the user's configuration file count.
"""

import io
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.engine.events import Result, Token
from hipcli.runs.checks import check_settings
from hipcli.runs.inquiry import Inquiry
from hipcli.terminal.console import Console
from hipcli.terminal.progress import ProgressView


class Answer:
    """An answer: iterate it for its pieces as they come, or take `text`, which waits for all.

    Args:
        inquiry: where it is asked.
        question: what is asked.
        warnings: rows of `warnings[]`, of the documents and so far.
    """

    def __init__(self, inquiry: Inquiry, question: str, warnings: list[dict[str, str]]) -> None:
        self._inquiry = inquiry
        self._question = question
        self._warnings = warnings
        self._started_s = time.perf_counter()
        self._events = inquiry.ask(question)
        self._pieces: list[str] = []
        self._document: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[str]:
        """Pieces of the text, complete characters; those that came already first."""
        yield from list(self._pieces)
        if self._document is not None:
            return
        with closing(self._events) as events:
            for event in events:
                if isinstance(event, Token):
                    self._pieces.append(event.text)
                    yield event.text
                elif isinstance(event, Result):
                    self._finish(event)

    def _finish(self, result: Result) -> None:
        if result.finish_reason == "interrupted":
            raise KeyboardInterrupt
        grounds = self._inquiry.grounds(self._question, result)
        self._document = self._inquiry.document(result, grounds, self._warnings, self._started_s)

    @property
    def text(self) -> str:
        """The whole answer."""
        return str(self.document["answer"])

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """The passages it rests on, best first: path, page, line_start, line_end, score, text."""
        return list(self.document["evidence"])

    @property
    def citations(self) -> list[dict[str, Any]]:
        """Verified places in the documents: path, page, page_label, line_start, line_end, quote."""
        return [row for row in self.document["citations"] if row["verified"]]

    @property
    def document(self) -> dict[str, Any]:
        """Everything, as `hip ask --json` prints it."""
        for _ in self:
            pass
        if self._document is None:
            raise RuntimeError("the answer was left before its end; ask again")
        return self._document

    def __str__(self) -> str:
        return self.text


class Documents:
    """Documents that were read, ready for questions; made by `open`."""

    def __init__(self, inquiry: Inquiry, warnings: list[dict[str, str]]) -> None:
        self._inquiry = inquiry
        self.warnings = warnings

    def ask(self, question: str) -> Answer:
        """Asks a question, independent of all others; one at a time.

        Raises:
            HipError: as the command's errors; `message` and `hint` say what to do.
        """
        if not question.strip():
            raise UsageError("the question is empty", 'try: book.ask("Who wrote the letter?")')
        return Answer(self._inquiry, question, list(self.warnings))

    def close(self) -> None:
        """Gives back what was kept for the questions; saved sessions stay."""
        self._inquiry.__exit__(None, None, None)

    def __enter__(self) -> "Documents":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_documents(*sources: str, **options: Any) -> Documents:
    """Reads files and folders with the options of `hip ask`.

    Args:
        sources: paths.
        options: by name, as in a configuration file: model="smollm2", max_new_tokens=200.

    Raises:
        UsageError: no source, an unknown option, a value that cannot be.
        HipError: documents or a model that cannot be used.
    """
    if not sources:
        raise UsageError("no document given", 'try: hipcli.open("book.pdf")')
    console = Console(None, io.StringIO(), io.StringIO(), width=80)
    settings = Settings.from_keywords(console, options)
    check_settings(settings)
    warnings: list[dict[str, str]] = []
    inquiry = Inquiry(console, settings, warnings.append, many=True)
    inquiry.__enter__()
    try:
        view = ProgressView(console, shown=False)
        inquiry.open_documents(Sources(tuple(map(str, sources)), None), view)
    except BaseException:
        inquiry.__exit__(None, None, None)
        raise
    return Documents(inquiry, warnings)
