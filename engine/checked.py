"""Reading and answering, begun again when a saved session turns out to be damaged on the way.

A session's pages are checked when they are first used, so a damaged one may show after the first
words of an answer. Those rest on pages that were sound; the rest comes from documents read anew.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from hipcli.engine.answering.answerer import Answerer
from hipcli.engine.errors import DamagedSessionError, SessionError
from hipcli.engine.events import Event, Phase
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.store.pages import KVStore, Tail


@dataclass(slots=True)
class CheckedAnswer:
    """One answer.

    Args:
        reader: brings the context.
        answerer_of: an answerer for a store that holds it.
        given: a context that `reader` brought already, for an earlier question; without one it is
            read now.
        keep: part of the context's pages that this answer may use, where nothing is saved.

    Attributes:
        context, answerer: those of the last attempt; there once `events` has come to the answer.
        tail: the end of the context's store before this answer.
        asked: what the answer rests on: the context, or what is kept of it.
    """

    reader: ContextReader
    answerer_of: Callable[[KVStore], Answerer]
    given: Context | None = None
    keep: float = 1.0
    context: Context = field(init=False)
    answerer: Answerer = field(init=False)
    tail: Tail = field(init=False)
    asked: Context = field(init=False)

    def as_read(self) -> Context:
        """The context for another question: what this one left behind it is forgotten."""
        self.context.store.rewind(self.tail)
        cached_tokens = len(self.reader.request.context_ids)
        return replace(self.context, cached_tokens=cached_tokens, prefill_s=0.0)

    def events(self) -> Generator[Event | int, None, None]:
        """Events of reading, then the token ids of the answer.

        Raises:
            SessionError: the answer begun on a damaged session would go on differently.
        """
        said: list[int] = []
        while True:
            try:
                self.context = self.given or (yield from self.reader.read())
                self.tail = self.context.store.tail()
                self.asked = self.context
                if self.keep < 1:
                    self.asked = self.reader.pruned(self.context, self.keep)
                self.answerer = self.answerer_of(self.asked.store)
                yield Phase("answer")
                yield from self.answerer.read_head()
                for place, token in enumerate(self.answerer.tokens()):
                    if place == len(said):
                        said.append(token)
                        yield token
                    elif token != said[place]:
                        raise SessionError(
                            "the session was damaged in the middle of this answer", "ask again"
                        )
                return
            except DamagedSessionError as error:
                self.given = None
                yield self.reader.put_aside(error)
