"""`hip chat`: questions in a loop over one session, typed or piped in."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hipcli.citing.grounds import Citation
from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import DoesNotFitError, HipError
from hipcli.engine.events import Result
from hipcli.engine.nearest import nearest
from hipcli.exit_codes import ExitCode
from hipcli.runs.asking import Run
from hipcli.runs.conversation import Turn
from hipcli.runs.following import shown
from hipcli.runs.inquiry import Inquiry
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import count, duration, plural
from hipcli.terminal.output import Sink
from hipcli.terminal.progress import ProgressView
from hipcli.terminal.report import Report, footnotes

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord, SessionStore

# Of the conversation so far at most this much is read again with a question.
MAX_TURN_TOKENS = 2048
COMMANDS = {
    "/cite": "list the passages behind the last answer",
    "/save": "name the session: /save NAME",
    "/fork": "go on in a branch of the session: /fork [NAME]",
    "/stats": "tokens, times and the session",
    "/help": "this list",
    "/quit": "leave (so does Ctrl-D)",
}


class ChatRun(Run):
    """One conversation.

    Args:
        sources: what to read; None to take up the session called `session`.
        session: an id, the start of one, a name; empty for the latest.
        lines: what the user types, a question or command each; read once the context is open.
    """

    _inquiry: Inquiry

    def __init__(
        self,
        console: Console,
        settings: Settings,
        sink: Sink,
        sources: Sources | None,
        session: str,
        lines: Callable[[], Iterator[str]],
    ) -> None:
        super().__init__(console, settings, sink, "chat")
        self._sources = sources
        self._session = session
        self._lines = lines
        self._results: list[Result] = []
        self._citations: tuple[Citation, ...] = ()
        self._code = ExitCode.OK

    def _work(self, view: ProgressView) -> int:
        with Inquiry(self._console, self._settings, self._warn, many=True) as inquiry:
            self._inquiry = inquiry
            if self._sources is not None:
                inquiry.open_documents(self._sources, view)
            else:
                inquiry.open_session(self._session or None, view)
            view.stop()
            self._greet()
            for line in self._lines():
                if not line.strip():
                    continue
                if line.startswith("/") and not line.startswith("//"):
                    if not self._obey(*line.strip().partition(" ")[::2]):
                        break
                else:
                    self._answer(line.strip().removeprefix("/"))
        return self._code

    def _greet(self) -> None:
        if self._console.stdin_is_terminal:
            context = self._inquiry.material.context
            what = f"{plural(len(context.documents), 'document')}, {count(len(context.ids))} tokens"
            self._console.note(f"{what}; ask, or /help")

    def _answer(self, question: str) -> None:
        """Asks; what goes wrong with one question is told, and the next one may come."""
        settings, inquiry, began_s = self._settings, self._inquiry, time.perf_counter()
        labels = {"number": len(self._results) + 1}
        self._report = Report(self._sink, settings.output_format, settings.values["cite"], labels)
        visible = settings.shows_progress and self._console.stderr_is_terminal
        try:
            with ProgressView(self._console, visible) as view:
                events = inquiry.ask(question, turns=self._recent_turns())
                result = shown(events, lambda event: self._show(event, view))
        except DoesNotFitError as error:
            self._fail(error)
            return
        except KeyboardInterrupt:
            self._report.abandon()
            if not self._forgiven():
                raise
            return
        self._results.append(result)
        grounds = inquiry.grounds(question, result)
        self._citations = grounds.citations
        document = inquiry.document(result, grounds, self._warnings, began_s)
        self._report.result(document | {"question": question}, self._citations)
        if result.finish_reason != "interrupted":
            self._keep(question, result)
        elif not self._forgiven():
            raise KeyboardInterrupt

    def _fail(self, error: HipError) -> None:
        self._code = ExitCode.DOES_NOT_FIT
        self._console.line(f"error: {error.message} ({error.hint})")
        self._report.error(error)

    def _forgiven(self) -> bool:
        """Whoever sits at a terminal ends an answer with Ctrl-C, not the conversation."""
        if self._console.stdin_is_terminal:
            self._console.signals.clear()
            return True
        return False

    def _keep(self, question: str, result: Result) -> None:
        if self._settings.values["no_cache"]:
            self._inquiry.turns = (*self._inquiry.turns, (question, result.answer))
        else:
            self._inquiry.keep_turn(question, result)

    def _recent_turns(self) -> tuple[Turn, ...]:
        """The latest turns, as many as may be read again."""
        encode, room = self._inquiry.engine.tokenizer.encode, MAX_TURN_TOKENS
        recent: list[Turn] = []
        for turn in reversed(self._inquiry.turns):
            room -= sum(len(encode(text).ids) for text in turn)
            if room < 0:
                break
            recent.insert(0, turn)
        return tuple(recent)

    def _obey(self, name: str, argument: str) -> bool:
        """Does what a line that starts with a slash says; False ends the conversation."""
        actions: dict[str, Callable[[str], None]] = {
            "/cite": self._cite,
            "/save": self._save,
            "/fork": self._fork,
            "/stats": self._stats,
            "/help": self._help,
        }
        if name == "/quit":
            return False
        if name not in actions:
            close = nearest(name, COMMANDS)
            guess = f"did you mean {close}?" if close else "/help lists them"
            self._console.line(f"error: no command {name}; {guess}")
            return True
        try:
            actions[name](argument.strip())
        except HipError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._console.line(f"error: {error.message}{hint}")
        return True

    def _help(self, _: str) -> None:
        for name, what in COMMANDS.items():
            self._console.line(f"{name:7s} {what}")

    def _cite(self, _: str) -> None:
        notes = footnotes(self._citations)
        if not notes:
            self._console.line("no passages: nothing was answered from any yet")
        for note in notes:
            for line in note.splitlines():
                self._console.line(line)

    def _save(self, name: str) -> None:
        if not name:
            raise HipError("no name given", "/save NAME")
        store, record = self._saved()
        store.rename(record, name)
        store.claim_name(name, record.key)
        self._console.line(f"session {record.id} is called {name}")

    def _fork(self, name: str) -> None:
        from hipcli.engine.sessions.fork import fork

        store, record = self._saved()
        branch = fork(store, record, name)
        self._inquiry.follow(branch)
        self._console.line(f"now in session {branch.id}, a branch of {record.id}")

    def _saved(self) -> "tuple[SessionStore, SessionRecord]":
        """The session of this conversation.

        Raises:
            HipError: nothing is saved, or not yet.
        """
        from hipcli.engine.sessions import SessionStore

        session = self._results[-1].session.id if self._results else ""
        session = self._inquiry.session_id or session
        if not session or self._settings.values["no_cache"]:
            raise HipError("no session is saved", "ask a question first, without --no-cache")
        store = SessionStore(self._inquiry.settings.cache_root)
        return store, store.find(session)

    def _stats(self, _: str) -> None:
        context = self._inquiry.material.context
        self._console.line(f"context: {count(len(context.ids))} tokens")
        for number, result in enumerate(self._results[-1:], start=len(self._results)):
            spent = duration(result.timings.get("total_s", 0.0))
            self._console.line(
                f"answer {number}: {count(result.cached_tokens)} tokens cached, "
                f"{count(result.prefilled_tokens)} prefilled, "
                f"{count(result.generated_tokens)} generated, {spent}"
            )
            self._console.line(f"session: {result.session.id or 'not saved'}")
        self._console.line(f"turns: {count(len(self._inquiry.turns))}")
