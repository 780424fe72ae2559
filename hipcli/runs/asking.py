"""One run of `hip ask`, from words to answer: read, open the engine, ask, show.

No error is caught here for good; `app.py` turns what escapes into an exit code.
"""

import time
from collections.abc import Mapping
from contextlib import suppress

from hipcli.config.arguments import Asked
from hipcli.config.settings import Settings
from hipcli.engine.errors import SessionError, UsageError
from hipcli.engine.events import Detail, Event, Notice, Phase, Progress, Result, Token
from hipcli.exit_codes import ExitCode
from hipcli.runs.following import shown
from hipcli.runs.inquiry import Inquiry
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import count, duration, size
from hipcli.terminal.output import Sink
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import Report, warning_row
from hipcli.version import __version__


class Run:
    """What every command that asks the engine shows while it works.

    Args:
        console: for notices and warnings.
        settings: the parsed options.
        sink: where the output goes.
        command: its name, for the first JSON event.
    """

    # What is left of a run that is interrupted once everything is read.
    _all_read = 'what was read is saved; hip ask --resume "QUESTION" asks about it'

    def __init__(self, console: Console, settings: Settings, sink: Sink, command: str) -> None:
        self._console = console
        self._settings = settings
        self._sink = sink
        self._command = command
        self._report = Report(sink, settings.output_format, settings.values["cite"])
        self._warnings: list[dict[str, str]] = []
        self._started_s = time.perf_counter()
        self._reading: Progress | None = None

    def run(self) -> int:
        """Does the work, and returns the exit code."""
        console = self._console
        # On one terminal, a live line and JSON lines would overwrite each other.
        mixed = self._settings.output_format == "jsonl" and console.stdout_is_terminal
        visible = self._settings.shows_progress and not mixed
        with ProgressView(console, visible) as view, console.libraries_kept_quiet():
            self._report.start(self._command, __version__)
            try:
                return self._work(view)
            except BaseException as error:
                view.stop()
                self._report.abandon()
                if isinstance(error, KeyboardInterrupt):
                    console.kept = self._kept_in_words()
                raise

    def _work(self, view: ProgressView) -> int:
        raise NotImplementedError

    def _kept_in_words(self) -> str:
        """What an interrupted run leaves behind, and how to go on; empty if there is nothing."""
        reading, values = self._reading, self._settings.values
        if reading is None or not reading.saved or values["no_cache"]:
            return ""
        if reading.done_tokens == reading.total_tokens:
            return self._all_read
        again = "the same command" + (" without --refresh" if values["refresh"] else "")
        done = f"{count(reading.done_tokens)} of {count(reading.total_tokens)} tokens"
        return f"{done} are kept; {again} goes on from there"

    def _show(self, event: Event, view: ProgressView) -> None:
        if isinstance(event, Token):
            if self._settings.output_format == "text":
                if self._console.stdout_is_terminal:
                    view.stop()
                view.answer_begins()
            self._report.token(event.text)
        else:
            self._show_work(event, view)

    def _show_work(self, event: Event, view: ProgressView) -> None:
        """Shows what is no part of an answer."""
        if isinstance(event, Progress):
            self._reading = event if event.phase == "prefill" else self._reading
            view.advance(event)
            self._report.progress(event)
        elif isinstance(event, Phase):
            view.phase(event.name)
        elif isinstance(event, Detail):
            self._console.detail(event.message)
        elif isinstance(event, Notice):
            self._warn(warning_row(event.code, event.message))

    def _warn(self, row: dict[str, str]) -> None:
        self._warnings.append(row)
        # Messages about a document begin with its name.
        self._console.warn(row["message"])
        self._report.warning(row)


class AskRun(Run):
    """One question, asked once.

    Args:
        asked: what is asked, about what.
        converse: True to let the session keep question and answer.
        page: where the page of `--open-evidence` goes; None for no page.
    """

    def __init__(
        self,
        console: Console,
        settings: Settings,
        asked: Asked,
        sink: Sink,
        converse: bool = False,
        page: Sink | None = None,
    ) -> None:
        super().__init__(console, settings, sink, "ask")
        self._asked = asked
        self._converse = converse
        self._page = page

    def _work(self, view: ProgressView) -> int:
        question, key = self._asked.question, self._asked.session
        with Inquiry(self._console, self._settings, self._warn) as inquiry:
            if key is None and self._asked.sources is not None:
                inquiry.open_documents(self._asked.sources, view, [question])
            else:
                if not key:
                    self._refuse_lone_key()
                inquiry.open_session(key or None, view, [question])
            events = inquiry.ask(question, turns=inquiry.turns)
            result = shown(events, lambda event: self._show(event, view))
            return self._finish(result, inquiry, view)

    def _refuse_lone_key(self) -> None:
        """`hip ask --resume ID` lacks its question; the id must not be taken for one."""
        from hipcli.engine.sessions import SessionStore

        word = self._asked.question
        if " " in word or len(word) < 4:
            return
        with suppress(SessionError):
            SessionStore(self._settings.cache_root).find(word)
            raise UsageError(
                f"{word!r} is a session, the question is missing",
                f'try: hip ask --resume {word} "QUESTION"',
            )

    def _finish(self, result: Result, inquiry: Inquiry, view: ProgressView) -> int:
        view.stop()
        if result.finish_reason == "interrupted" and self._settings.output_format == "text":
            # Half an answer on the screen speaks for itself; in a file it must not stand.
            raise KeyboardInterrupt
        question = self._asked.question
        grounds = inquiry.grounds(question, result)
        if self._converse and result.finish_reason != "interrupted":
            inquiry.keep_turn(question, result)
        document = inquiry.document(result, grounds, self._warnings, self._started_s)
        self._report.result(document, grounds.citations)
        if result.finish_reason == "length" and self._settings.output_format == "text":
            limit = self._settings.generation_config().max_new_tokens
            self._console.note(
                f"the answer was cut at {limit} tokens; --max-new-tokens allows more"
            )
        if self._page is not None:
            from hipcli.citing.evidence_page import evidence_page

            context = inquiry.material.context
            self._page.write(evidence_page(question, result.answer, context, grounds))
        self._summarise(result, document["model"]["heads"])
        return ExitCode.INTERRUPTED if result.finish_reason == "interrupted" else ExitCode.OK

    def _summarise(self, result: Result, heads: str | None) -> None:
        """What `-v` adds after the answer; `heads` names the calibration, if there is one."""
        elapsed_s = time.perf_counter() - self._started_s
        self._console.detail(
            f"{count(result.context_tokens)} tokens of context, "
            f"{count(result.cached_tokens)} cached, "
            f"{count(result.prefilled_tokens)} prefilled, "
            f"{count(result.generated_tokens)} generated, in {duration(elapsed_s)}"
        )
        memory = result.memory
        if memory:
            self._console.detail(
                f"{kv_places(memory)};"
                f" at most {size(memory.get('peak_rss_bytes', 0))} of main memory"
            )
        if result.drafted_tokens:
            self._console.detail(
                f"{count(result.accepted_tokens)} of {count(result.drafted_tokens)} tokens guessed "
                "from the passages were right"
            )
        if result.session.id:
            self._console.detail(f"session {result.session.id}")
        if heads:
            self._console.detail(f"heads vote as they were calibrated ({heads})")


def kv_places(memory: Mapping[str, int]) -> str:
    """Where the keys and values of a result lie; some may be in two places at once."""
    places = {"device": "on the GPU", "host": "in main memory", "disk": "in files"}
    held = {words: memory.get(f"kv_{place}_bytes", 0) for place, words in places.items()}
    shares = [f"{size(number)} {words}" for words, number in held.items() if number]
    resident = memory.get("kv_resident_bytes", 0)
    if resident:
        shares.append(f"{size(resident)} of these in memory now")
    told = f"keys and values {size(memory.get('kv_bytes', sum(held.values())))}"
    return f"{told}: {', '.join(shares)}" if shares else told
