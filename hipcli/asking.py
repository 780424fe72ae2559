"""One run of `hip ask`, from words to answer: read, open the engine, ask, show.

No error is caught here for good; `app.py` turns what escapes into an exit code.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from hipcli.arguments import Asked, Sources
from hipcli.console import Console
from hipcli.engine.errors import SessionError, UsageError
from hipcli.engine.events import Event, Notice, Phase, Progress, Result, Token
from hipcli.exit_codes import ExitCode
from hipcli.formatting import count, duration, plural
from hipcli.material import Material, Room, from_corpus, from_session, refuse_own_output
from hipcli.output import Sink
from hipcli.progress import ProgressView
from hipcli.report import Finding, Report, ask_document, warning_row
from hipcli.settings import Settings
from hipcli.version import __version__

if TYPE_CHECKING:
    from hipcli.documents import Corpus
    from hipcli.engine.engine import Engine
    from hipcli.engine.request import AskRequest
    from hipcli.engine.sessions import SessionStore

# A resumed session keeps these as they were unless the command line says otherwise: its keys and
# values hold for no others.
_KEPT_SETTINGS = (
    "model",
    "dtype",
    "kv_dtype",
    "method",
    "budget_tokens",
    "window_tokens",
    "sink_tokens",
    "system",
)


class AskRun:
    """One question, asked once.

    Args:
        console: for notices and warnings.
        settings: the parsed options.
        asked: what is asked, about what.
        sink: where the answer goes.
        open_engine: as in `opening.py`.
        make_request: as in `opening.py`.
    """

    def __init__(
        self,
        console: Console,
        settings: Settings,
        asked: Asked,
        sink: Sink,
        open_engine: Callable[..., "Engine"],
        make_request: Callable[..., "AskRequest"],
    ) -> None:
        self._console = console
        self._settings = settings
        self._asked = asked
        self._sink = sink
        self._open_engine = open_engine
        self._make_request = make_request
        self._report = Report(sink, settings.output_format, settings.values["cite"])
        self._warnings: list[dict[str, str]] = []
        self._timings: dict[str, float] = {}
        self._started_s = time.perf_counter()

    def run(self) -> int:
        """Answers, and returns the exit code."""
        console = self._console
        # On one terminal, a live line and JSON lines would overwrite each other.
        mixed = self._settings.output_format == "jsonl" and console.stdout_is_terminal
        shown = self._settings.shows_progress and not mixed
        with ProgressView(console, shown) as view, console.libraries_kept_quiet():
            self._report.start("ask", __version__)
            try:
                if self._asked.session is None and self._asked.sources is not None:
                    return self._ask_documents(self._asked.sources, view)
                return self._ask_session(self._asked.session or None, view)
            except BaseException:
                view.stop()
                self._report.abandon()
                raise

    def _ask_documents(self, sources: Sources, view: ProgressView) -> int:
        corpus = self._read(sources, view)
        engine = self._open(view)
        view.phase("counting tokens")
        begun_s = time.perf_counter()
        material, question = self._assemble(corpus, engine)
        self._timings["tokenize_s"] = time.perf_counter() - begun_s
        return self._ask(engine, material, question, view)

    def _ask_session(self, key: str | None, view: ProgressView) -> int:
        from hipcli.engine.sessions import SessionStore
        from hipcli.prompts import question_ids

        view.phase("opening the session")
        store = SessionStore(self._settings.cache_root)
        record = store.find(key)
        self._refuse_lone_key(store, key)
        self._settings = self._settings.unless_given(record.extra.get("settings", {}))
        engine = self._open(view)
        material = from_session(store, record, engine.tokenizer)
        system = self._settings.values["system"]
        question = question_ids(self._asked.question, engine.tokenizer, system)
        return self._ask(engine, material, question, view)

    def _refuse_lone_key(self, store: "SessionStore", key: str | None) -> None:
        """`hip ask --resume ID` lacks its question; the id must not be taken for one."""
        word = self._asked.question
        if key is not None or " " in word or len(word) < 4:
            return
        with suppress(SessionError):
            store.find(word)
            raise UsageError(
                f"{word!r} is a session, the question is missing",
                f'try: hip ask --resume {word} "QUESTION"',
            )

    def _read(self, sources: Sources, view: ProgressView) -> "Corpus":
        view.phase(f"reading {plural(len(sources.names), 'source')}")
        begun_s = time.perf_counter()
        from hipcli.documents import read_sources

        corpus = read_sources(
            sources.names, self._settings.read_options(sources.stdin), view.reading
        )
        refuse_own_output(corpus, self._settings.values["output"])
        for warning in corpus.warnings:
            self._warn(warning_row(warning.code, warning.message, warning.path))
        self._timings["ingest_s"] = time.perf_counter() - begun_s
        return corpus

    def _open(self, view: ProgressView) -> "Engine":
        return self._open_engine(self._console, self._settings.engine_config(), view)

    def _assemble(self, corpus: "Corpus", engine: "Engine") -> tuple[Material, list[int]]:
        from hipcli.prompts import question_ids

        values = self._settings.values
        question = question_ids(self._asked.question, engine.tokenizer, values["system"])
        limit = values["context_limit"] or engine.description.get("context_limit")
        room = Room(limit, len(question), values["max_new_tokens"], values["fit"])
        material = from_corpus(corpus, engine.tokenizer, values["system"], room)
        if material.truncated_tokens:
            left_out = f"{count(material.truncated_tokens)} tokens of the documents were left out"
            self._warn(warning_row("truncated", f"{left_out} (--fit {values['fit']})"))
        return material, question

    def _ask(
        self, engine: "Engine", material: Material, question: list[int], view: ProgressView
    ) -> int:
        from hipcli.prompts import question_range

        values = self._settings.values
        kept = {name: values[name] for name in _KEPT_SETTINGS}
        request = self._make_request(
            material.digests,
            context_ids=material.context.ids,
            prefix_tokens=material.prefix_tokens,
            question_ids=question,
            question_span=question_range(self._asked.question, engine.tokenizer),
            answer=values["answer"],
            generation=self._settings.generation_config(),
            cache=self._settings.cache_config(),
            extra=material.as_record(kept),
        )
        # Closed also when it is this side that fails: the engine then keeps what was prefilled.
        with closing(engine.ask(request)) as events:
            for event in events:
                if isinstance(event, Result):
                    return self._finish(event, engine, material, view)
                self._show(event, view)
        raise RuntimeError("the engine ended without a result")

    def _show(self, event: Event, view: ProgressView) -> None:
        if isinstance(event, Token):
            if self._settings.output_format == "text" and self._console.stdout_is_terminal:
                view.stop()
            self._report.token(event.text)
        elif isinstance(event, Progress):
            view.advance(event)
            self._report.progress(event)
        elif isinstance(event, Phase):
            view.phase(event.name)
        elif isinstance(event, Notice):
            self._warn(warning_row(event.code, event.message))

    def _finish(
        self, result: Result, engine: "Engine", material: Material, view: ProgressView
    ) -> int:
        view.stop()
        findings = [
            Finding(passage, evidence.score)
            for evidence in result.evidence
            for passage in material.context.locate(evidence.start_token, evidence.end_token)
        ]
        self._timings["total_s"] = time.perf_counter() - self._started_s
        timings = {"ingest_s": 0.0, "tokenize_s": 0.0} | self._timings
        document = ask_document(
            result, material, findings, engine.description, timings, self._warnings
        )
        self._report.result(document, findings)
        self._summarise(result)
        return ExitCode.INTERRUPTED if result.finish_reason == "interrupted" else ExitCode.OK

    def _summarise(self, result: Result) -> None:
        """What `-v` adds after the answer."""
        self._console.detail(
            f"{count(result.context_tokens)} tokens of context, "
            f"{count(result.cached_tokens)} cached, "
            f"{count(result.prefilled_tokens)} prefilled, "
            f"{count(result.generated_tokens)} generated, in {duration(self._timings['total_s'])}"
        )
        if result.session.id:
            self._console.detail(f"session {result.session.id}")

    def _warn(self, row: dict[str, str]) -> None:
        self._warnings.append(row)
        where = f"{row['path']}: " if row["path"] else ""
        self._console.warn(where + row["message"])
        self._report.warning(row)
