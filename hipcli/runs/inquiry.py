"""Documents or a saved session, read once, and an engine: ready for one question after another.

The steps that `hip ask`, `chat`, `summarize` and `hipcli.open` share. Every question is
independent: it starts from the saved context and leaves no trace in it.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hipcli.citing.grounds import Finding, Grounds
from hipcli.config import options
from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import DamagedSessionError
from hipcli.engine.events import Event, Result
from hipcli.runs import opening, stale
from hipcli.runs.checks import check_settings, require_session
from hipcli.runs.conversation import Turn, as_record, keep, turns_of
from hipcli.runs.material import (
    Material,
    Room,
    check_fits,
    from_corpus,
    from_session,
    refuse_own_output,
)
from hipcli.runs.ranks import Ranks
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import count, plural
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import ask_document, warning_row

if TYPE_CHECKING:
    from pathlib import Path

    from hipcli.documents import Corpus
    from hipcli.engine.config import GenerationConfig
    from hipcli.engine.engine import Engine
    from hipcli.engine.sessions import SessionRecord

# A resumed session keeps these as they were unless the command line says otherwise: its text was
# cut and read by them.
_KEPT_SETTINGS = (
    *stale.SHAPING,
    *("system", "context_limit", "fit", "encoding", "verify_weights"),
    *("include", "exclude", "hidden", "gitignore", "max_file_size"),
)

# Room for a question that is not known yet when documents are cut to what fits.
UNKNOWN_QUESTION_TOKENS = 512


class Inquiry:
    """A context to ask about, from `with` to the end of the block.

    Args:
        console: for what the engine's opening has to say.
        settings: the parsed options; those of a resumed session once it is open.
        warn: gets the rows of `warnings[]`.
        many: more than one question may come. Without a cache the context is then kept in a
            temporary folder meanwhile, so that it is read only once.
        opened: an engine of the same settings that is open already, for documents.

    Attributes:
        engine, material: once `open` has run.
        timings: seconds of reading and counting.
        turns: the conversation that a resumed session keeps.
        stale: documents that changed since a resumed session was read.
        session_id: of a resumed session; empty for documents just read.
    """

    engine: "Engine"
    material: Material

    def __init__(
        self,
        console: Console,
        settings: Settings,
        warn: Callable[[dict[str, str]], None],
        many: bool = False,
        opened: "Engine | None" = None,
    ) -> None:
        self.settings = settings
        self.timings: dict[str, float] = {}
        self.turns: tuple[Turn, ...] = ()
        self.stale: list[str] = []
        self.session_id = ""
        self._folders: dict[str, str] = {}
        self._console = console
        self._warn = warn
        self._many = many
        self._opened = opened
        self._stack = ExitStack()
        self._cache = settings.cache_config()

    def __enter__(self) -> "Inquiry":
        if self._many and self._cache.directory is None:
            folder = tempfile.TemporaryDirectory(prefix="hip-", ignore_cleanup_errors=True)
            from pathlib import Path

            directory = Path(self._stack.enter_context(folder))
            self._cache = dataclasses.replace(self._cache, directory=directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _engine(self, view: ProgressView) -> "Engine":
        """The engine; where it runs on several processes they end with this block."""
        ranks = Ranks.of(self.settings)
        config = self.settings.engine_config()
        if ranks is None:
            return opening.open_engine(self._console, config, view)
        engine: Any = opening.open_engine(self._console, config, view, ranks)
        self._stack.push(lambda _kind, error, _trace: engine.close(error))
        return engine

    @property
    def cache_directory(self) -> "Path | None":
        """Where the context's session is kept; None without a cache."""
        return self._cache.directory

    def open_documents(
        self, sources: Sources, view: ProgressView, questions: Sequence[str] = ()
    ) -> None:
        """Reads `sources` and opens the engine.

        Args:
            questions: those known already; the longest must fit beside the documents.

        Raises:
            HipError: as reading, opening, and `from_corpus` do.
        """
        opening.require_model(self.settings.engine_config())
        self._folders = stale.folders_of(sources.names)
        corpus = self._read(sources, view)
        if self._cache.cached_only:
            require_session(self.settings.cache_root, corpus)
        self._open_corpus(corpus, view, questions)

    def open_session(
        self, key: str | None, view: ProgressView, questions: Sequence[str] = ()
    ) -> None:
        """Takes up a saved session: by id, the start of an id, or name; None for the latest.

        Files that changed since are read again, unless the settings say that this is no matter.

        Raises:
            HipError: as finding it and opening the engine do.
        """
        from hipcli.engine.sessions import SessionStore
        from hipcli.prompts import remembered_documents

        view.phase("opening the session")
        store = SessionStore(self.settings.cache_root)
        record = store.find(key)
        self.follow(record)
        self.settings = self.settings.unless_given(record.extra.get("settings", {}))
        check_settings(self.settings)
        for row in stale.differing(record, self.settings.values):
            self._warn(row)
        self._folders = record.extra.get("folders", {})
        for row in stale.appeared(record, self.settings.read_options(None)):
            self._warn(row)
        documents = remembered_documents(record.extra.get("context", {}))
        changed, gone = stale.changed(documents), stale.gone(documents)
        if gone:
            what = f"{', '.join(gone)} no longer there; the session's text of it is used"
            self._warn(warning_row("source_gone", what))
        if changed and not self.settings.values["stale_ok"]:
            what = f"{', '.join(changed)} changed since the session was read; it is read again"
            self._warn(warning_row("source_changed", what))
            return self._open_again(record, view, questions)
        self.engine = self._engine(view)
        try:
            self.material = from_session(store, record, self.engine.tokenizer)
        except DamagedSessionError as error:
            store.quarantine(record.path)
            what = f"{error.message}; the documents are read again"
            self._warn(warning_row("session_damaged", what))
            return self._open_again(record, view, questions)
        if changed:
            self.stale = changed
            what = f"{', '.join(changed)} changed since; the answer is about the former text"
            self._warn(warning_row("source_stale", what))

    def follow(self, record: "SessionRecord") -> None:
        """Questions go to that session, or that branch of it, from now on."""
        self.session_id, self.turns = record.id, turns_of(record)
        self._cache = dataclasses.replace(self._cache, branch=record.branch)
        if self.settings.sources.get("keep") != "command line":
            self._cache = dataclasses.replace(self._cache, keep=record.keep)

    def _open_again(
        self, record: "SessionRecord", view: ProgressView, questions: Sequence[str]
    ) -> None:
        """The session's documents are read anew, as far as they differ; its name goes with them."""
        from hipcli.prompts import remembered_documents

        documents = remembered_documents(record.extra.get("context", {}))
        corpus = stale.read_again(documents, self.settings.read_options(None))
        self.session_id = ""
        if record.name and not self._cache.name:
            self._cache = dataclasses.replace(self._cache, name=record.name)
        self._open_corpus(corpus, view, questions)

    def _open_corpus(self, corpus: "Corpus", view: ProgressView, questions: Sequence[str]) -> None:
        # One on several processes ends with the block that opened it.
        opened = None if Ranks.of(self.settings) else self._opened
        self.engine = opened or self._engine(view)
        view.phase("counting tokens")
        begun_s = time.perf_counter()
        self.material = self._assemble(corpus, questions)
        self.timings["tokenize_s"] = time.perf_counter() - begun_s

    def ask(
        self,
        question: str,
        generation: "GenerationConfig | None" = None,
        turns: Sequence[Turn] = (),
        **fields: Any,
    ) -> Generator[Event, None, None]:
        """The engine's events for one question, independent of all others but those of `turns`.

        Args:
            turns: questions and answers that this one follows on from.
            generation: how to generate, when not as the settings say.
            fields: of the engine's request, when not as the settings say.

        Raises:
            DoesNotFitError: question and answer exceed `--context-limit`.
        """
        from hipcli.prompts import question_ids, question_range

        values, material = self.settings.values, self.material
        tokenizer = self.engine.tokenizer
        generation = generation or self.settings.generation_config()
        ids = question_ids(question, tokenizer, values["system"], turns=turns)
        check_fits(material, len(ids), generation.max_new_tokens, self._limit_tokens())
        usual = {
            "context_ids": material.context.ids,
            "prefix_tokens": material.prefix_tokens,
            "question_ids": ids,
            "question_span": question_range(question, tokenizer, turns=turns),
            "answer": values["answer"],
            "rounds": values["rounds"],
            "generation": generation,
            "cache": self._cache,
            "extra": material.as_record({name: values[name] for name in _KEPT_SETTINGS})
            # Wherever the text is read anew, the conversation goes on.
            | (as_record(self.turns) if self.turns else {})
            | ({"folders": self._folders} if self._folders else {}),
        }
        # What was read anew for the first question serves the others.
        self._cache = dataclasses.replace(self._cache, refresh=False)
        return self.engine.ask(opening.make_request(material.digests, **(usual | fields)))

    def findings(self, result: Result) -> list[Finding]:
        """The passages behind an answer as places in documents, best first."""
        return [
            Finding(passage, evidence.score)
            for evidence in result.evidence
            for passage in self.material.context.locate(evidence.start_token, evidence.end_token)
        ]

    def grounds(self, question: str, result: Result) -> Grounds:
        """Where the answer to `question` comes from, looked up in the documents."""
        # It searches with numpy; a command that asks nothing does not wait for that.
        from hipcli.citing.grounding import find_grounds

        return find_grounds(question, result.answer, self.material.context, self.findings(result))

    def document(
        self,
        result: Result,
        grounds: Grounds,
        warnings: Sequence[dict[str, str]],
        started_s: float,
    ) -> dict[str, Any]:
        """The JSON document of an answer whose work began at `started_s` (`perf_counter`)."""
        timings = {"ingest_s": 0.0, "tokenize_s": 0.0} | self.timings
        timings["total_s"] = time.perf_counter() - started_s
        description = self.engine.description
        document = ask_document(result, self.material, grounds, description, timings, warnings)
        document["session"] |= {"stale": self.stale, "turns": len(self.turns)}
        return document

    def keep_turn(self, question: str, result: Result) -> None:
        """Lets the session keep a question and its answer; the next ones may follow on from it."""
        from hipcli.engine.sessions import SessionStore

        turn = (question, result.answer)
        store = SessionStore(self.settings.cache_root)
        resumed = bool(self.session_id) and result.session.id == self.session_id
        reason = keep(store, result.session.id, self.turns, turn, resumed)
        if reason:
            self._warn(warning_row("turn_not_kept", f"the conversation is not kept: {reason}"))
        else:
            self.turns = (*self.turns, turn)

    def _read(self, sources: Sources, view: ProgressView) -> "Corpus":
        view.phase(f"reading {plural(len(sources.names), 'source')}")
        begun_s = time.perf_counter()
        from hipcli.documents import read_sources

        corpus = read_sources(
            sources.names, self.settings.read_options(sources.stdin), view.reading
        )
        for option in ("output", "open_evidence"):
            refuse_own_output(corpus, self.settings.values.get(option), options.flag(option))
        for warning in corpus.warnings:
            self._warn(warning_row(warning.code, warning.message, warning.path))
        self.timings["ingest_s"] = time.perf_counter() - begun_s
        return corpus

    def _assemble(self, corpus: "Corpus", questions: Sequence[str]) -> Material:
        from hipcli.prompts import question_ids

        values, tokenizer = self.settings.values, self.engine.tokenizer
        system = values["system"]
        lengths = [
            len(question_ids(question, tokenizer, system, turns=self.turns))
            for question in questions
        ]
        longest = max(lengths, default=UNKNOWN_QUESTION_TOKENS)
        room = Room(self._limit_tokens(), longest, values["max_new_tokens"], values["fit"])
        material = from_corpus(corpus, tokenizer, system, room)
        if material.truncated_tokens:
            left_out = f"{count(material.truncated_tokens)} tokens of the documents were left out"
            self._warn(warning_row("truncated", f"{left_out} (--fit {values['fit']})"))
        return material

    def _limit_tokens(self) -> int | None:
        limit: int | None = self.settings.values["context_limit"]
        return limit or self.engine.description.get("context_limit")
