"""Rank 0's runner, store and passes: the engine uses them like those of one device.

What they are asked to do is sent to all ranks as a command and performed here too. One command is
finished before the next begins, also when Ctrl-C comes in between.
"""

import contextlib
import signal
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from hipcli.engine.answering.vote import Ballot
from hipcli.engine.distributed.placement import owners_of
from hipcli.engine.distributed.question import ShardQuestion
from hipcli.engine.distributed.shard import Record, Shard
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.base import Method
from hipcli.engine.passes import AnswerPass, Passes
from hipcli.engine.store.layout import num_pages
from hipcli.engine.store.pages import PAGE_TOKENS, Tail


class Channel(Protocol):
    """How commands reach the other ranks."""

    def send(self, record: Record) -> None:
        """Send a command to all other ranks. Raises RankLostError."""


class Team:
    """All ranks, as rank 0 commands them.

    Args:
        shard: rank 0's own part.
        channel: to the others.
        placement: how pages are placed, a name in `PLACEMENTS`.
    """

    def __init__(self, shard: Shard, channel: Channel, placement: str = "interleaved") -> None:
        self.shard = shard
        # Stores live as long as the engine uses them.
        shard.stores = weakref.WeakValueDictionary()
        shard.new_store = partial(DrivenStore, self)  # type: ignore[method-assign]
        self.placement = placement
        self._channel = channel
        self._handles = 0
        self._dropped: list[int] = []

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.shard.group.size

    def run(self, command: str, **record: Any) -> Any:
        """Let all ranks perform a command; the result of rank 0.

        Raises:
            HipError, OSError: what went wrong on any of them.
        """
        dropped, self._dropped = self._dropped, []
        record = {"command": command, "dropped": dropped, **record}
        with finished_first():
            self._channel.send(record)
            return self.shard.perform(record)

    def handle(self) -> int:
        """A new name for a store, a pass or a tail."""
        self._handles += 1
        return self._handles

    def drop_with(self, owner: Any, handle: int) -> None:
        """Let all ranks forget what a handle names once `owner` is gone."""
        # The list may be another one by then.
        weakref.finalize(owner, lambda: self._dropped.append(handle)).atexit = False


@contextlib.contextmanager
def finished_first() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM: ranks that were told to do something must not wait in vain."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, Any]] = []
    former: dict[int, Any] = {}
    number: int
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            former[number] = signal.signal(number, lambda *seen: held.append(seen))
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    for number, frame in held:
        former[number](number, frame)


@dataclass(frozen=True)
class DrivenTail(Tail):
    """The end of a store on all ranks."""

    handle: int = 0


class DrivenStore(ShardStore):
    """Rank 0's part of a store, whose methods act on all ranks.

    Args:
        team: all ranks.
        handle: its name.
        capacity_tokens: how many tokens the store can ever hold.
    """

    def __init__(self, team: Team, handle: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._team = team
        self.handle = handle
        team.drop_with(self, handle)

    def map_session(
        self, folder: Path, file_tokens: int, tokens: int, seed: int, *, shared: bool
    ) -> None:
        self._team.run(
            "map",
            store=self.handle,
            folder=str(folder.resolve()),
            file_tokens=file_tokens,
            tokens=tokens,
            seed=seed,
            shared=shared,
        )

    def save(self, start: int, end: int) -> int:
        saved: int = self._team.run("save", store=self.handle, start=start, end=end)
        return saved

    def flush(self) -> None:
        self._team.run("flush", store=self.handle)

    def tail(self) -> Tail:
        handle = self._team.handle()
        self._team.run("tail", store=self.handle, handle=handle)
        own = self._team.shard.tails[handle]
        tail = DrivenTail(own.length, own.pages, own.scales, own.companion, handle)
        self._team.drop_with(tail, handle)
        return tail

    def rewind(self, tail: Tail) -> None:
        if not isinstance(tail, DrivenTail):
            raise TypeError("this tail is none of this store's")
        self._team.run("rewind", store=self.handle, handle=tail.handle)

    def picked(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        found: tuple[torch.Tensor, torch.Tensor | None] = self._team.run(
            "picked", store=self.handle, layer=layer, pages=pages.tolist()
        )
        return found

    def worth(self) -> list[float]:
        """What each page is worth keeping, as `page_worth`."""
        worth: list[float] = self._team.run("worth", store=self.handle)
        return worth

    def move_pages(self, pages: Sequence[int], to: int) -> None:
        """Give whole pages of the context to another rank; what follows is the same answer.

        Args:
            pages: not the page that is written next, nor one behind it.
            to: a rank.

        Raises:
            ValueError: such a page, or no such rank.
            DoesNotFitError: the rank has no room; all is as it was.
        """
        end = self.length // PAGE_TOKENS
        if not all(0 <= page < end for page in pages):
            raise ValueError(f"pages {list(pages)} are not whole pages of the first {end}")
        if not 0 <= to < self._team.size:
            raise ValueError(f"{to} is no rank from 0 to {self._team.size - 1}")
        if pages:
            # Room first: what is sent must arrive.
            for command in ("reserve", "move"):
                self._team.run(command, store=self.handle, pages=sorted(set(pages)), to=to)


class DrivenRunner(Runner):
    """The model on all ranks; a store made by `new_store` is rank 0's alone.

    Args:
        runner: rank 0's.
        team: all ranks.
    """

    def __init__(self, runner: Runner, team: Team) -> None:
        # The same model, which must not be changed a second time.
        vars(self).update(vars(runner))
        self.team = team

    def new_shared_store(
        self, capacity_tokens: int, owners: Sequence[int] | None = None
    ) -> DrivenStore:
        """An empty store over all ranks.

        Args:
            capacity_tokens: how many tokens it can ever hold.
            owners: a rank for each of its pages; None places them as the team does.

        Raises:
            DoesNotFitError: a rank has no room for its part.
        """
        team, pages = self.team, num_pages(capacity_tokens)
        if owners is None:
            owners = owners_of(team.placement, pages, team.size)
        handle = team.handle()
        store: DrivenStore = team.run(
            "open", store=handle, capacity_tokens=capacity_tokens, owners=list(owners)
        )
        return store

    def forward(self, ids: torch.Tensor, step: StepInput) -> None:
        """As `Runner.forward`; each rank runs the tokens of its own pages."""
        store = step.store
        if not isinstance(store, DrivenStore):
            super().forward(ids, step)
            return
        self.team.run("read", store=store.handle, start=step.start, ids=ids.tolist())

    def logits(self, ids: torch.Tensor, step: StepInput, *, keep: int = 1) -> torch.Tensor:
        """As `Runner.logits`; all ranks run the tokens."""
        store, attention = step.store, step.attention
        if not isinstance(store, DrivenStore) or not isinstance(attention, DrivenPass):
            return super().logits(ids, step, keep=keep)
        logits: torch.Tensor = self.team.run(
            "tokens",
            store=store.handle,
            start=step.start,
            ids=ids.tolist(),
            attention=attention.handle,
            keep=keep,
        )
        return logits


class DrivenPass:
    """The attention of a pass on all ranks, in place of one of `engine/passes`.

    Args:
        team: all ranks.
        kind: as `Shard` knows it.
        made: what it is made of.

    Attributes:
        alone: of an answer, the pass of one device, which knows what may run together.
    """

    # Its exchanges are no part of a CUDA graph yet.
    graphs = False
    alone: AnswerPass

    def __init__(self, team: Team, kind: str, **made: Any) -> None:
        self.handle = team.handle()
        team.run("pass", handle=self.handle, kind=kind, **made)
        team.drop_with(self, self.handle)

    def together(self, start: int, most: int) -> int:
        """As `AnswerPass.together`."""
        return self.alone.together(start, most)

    def attend(self, layer: int, q: torch.Tensor, step: StepInput) -> torch.Tensor:
        """Never called: `DrivenRunner` runs the shards' passes."""
        raise NotImplementedError("the shards attend")


def driven_passes(team: Team) -> Passes:
    """Makers of passes for an `Answerer` whose store is over all ranks."""

    def question(method: Method, ballot: Ballot, budget_tokens: int, size: int) -> Any:
        weights = ballot.head_weights
        made = DrivenPass(
            team,
            "question",
            context_tokens=ballot.context_tokens,
            distance_tokens=ballot.distance_tokens,
            own_words=list(ballot.own_words),
            first_page=ballot.first_page,
            first_token=ballot.first_token,
            budget_tokens=budget_tokens,
            block_size_k=size,
            head_weights=None if weights is None else weights.tolist(),
            passages=0 if ballot.asked is None else ballot.own_words[1],
        )
        asking = team.shard.passes[made.handle]
        if isinstance(asking, ShardQuestion):
            asking.ballot = ballot
        return made

    def unvoted(method: Method, own_words: tuple[int, int]) -> Any:
        return DrivenPass(team, "unvoted", own_words=list(own_words))

    def answer(method: Method, pages: torch.Tensor | None = None, before_page: int = 0) -> Any:
        given = None if pages is None else pages.tolist()
        made = DrivenPass(team, "answer", pages=given, before_page=before_page)
        made.alone = AnswerPass(method, pages, before_page)
        return made

    return Passes(question, unvoted, answer)
