"""The engine of rank 0 where there are several: the same requests, the same events."""

from dataclasses import dataclass, field, replace
from typing import Any

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.control import RankLostError
from hipcli.engine.distributed.driver import DrivenRunner, DrivenStore, Team, driven_passes
from hipcli.engine.distributed.joining import Member, check_config, join
from hipcli.engine.distributed.placement import most_pages
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.models import resolve
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.request import AskRequest
from hipcli.engine.store.layout import PAGE_TOKENS, num_pages
from hipcli.engine.store.pages import KVStore
from hipcli.engine.tokenizer import load_tokenizer


@dataclass(slots=True)
class DistributedEngine(Engine):
    """An `Engine` whose contexts lie on several ranks.

    Args:
        crew: starts the other ranks, or knows where they are.
        placement: how pages are placed, a name in `PLACEMENTS`.
    """

    crew: Crew = field(default_factory=Crew)
    placement: str = "interleaved"
    _member: Member | None = None

    @classmethod
    def over(
        cls, config: EngineConfig, crew: Crew, placement: str = "interleaved"
    ) -> "DistributedEngine":
        """Find the model and read its tokenizer; the other ranks are started by the first question.

        Raises:
            ModelError, UsageError: as `Engine.open`, or several ranks cannot do this.
        """
        check_config(config)
        config = crew.configured(config)
        folder = resolve(config.model, models_dir=config.models_dir)
        tokenizer = load_tokenizer(folder.path)
        return cls(config, folder, tokenizer, crew=crew, placement=placement)

    @property
    def team(self) -> Team:
        """All ranks; they are there, or started now."""
        runner = self.runner
        assert isinstance(runner, DrivenRunner)
        return runner.team

    def close(self, error: BaseException | None = None) -> None:
        """Let the other ranks end; another question starts them again.

        Args:
            error: what this one ends by; the others are told.
        """
        member, self._member, self._loaded = self._member, None, None
        if member is not None:
            word = ""
            try:
                if error is None:
                    member.commands.send(None)
                elif not isinstance(error, RankLostError):
                    word = f"{type(error).__name__}: {error}"
            except RankLostError:
                # The answer is there; that nobody is left to be sent home is no matter.
                word = ""
            member.leave(word)
        self.crew.close()

    def _load(self) -> None:
        if self._loaded is not None:
            return
        address = self.crew.start(self.config)
        config, folder, tokenizer = self.config, self.folder, self.tokenizer
        member, loaded = join(
            address, lambda: LoadedEngine.load(config, folder, tokenizer), self.crew.check
        )
        self._member = member
        team = Team(member.shard, member.commands, self.placement)
        # Pages are on the devices of all ranks, and on none of them in tiers.
        driven = DrivenRunner(loaded.runner, team)
        self._loaded = replace(loaded, runner=driven, tiering=None)

    def _held_pages(self, capacity_tokens: int) -> int:
        return most_pages(self.placement, num_pages(capacity_tokens), self.crew.size)

    def _short_of_memory(self, capacity_tokens: int, plan: Any) -> DoesNotFitError:
        held_tokens = self._held_pages(capacity_tokens) * PAGE_TOKENS
        return Engine._short_of_memory(self, held_tokens, plan)

    def _reader(self, request: AskRequest, spare_tokens: int) -> ContextReader:
        capacity_tokens = len(request.context_ids) + spare_tokens
        held_tokens = self._held_pages(capacity_tokens) * PAGE_TOKENS
        # Where pages follow one another in runs, one rank reads all of a chunk.
        readers = self.crew.size if self.placement == "interleaved" else 1
        return SharedReader(
            runner=self._loaded.runner,
            method=self._loaded.method,
            request=request,
            identity=self._loaded.identity,
            chunk_tokens=self._loaded.chunk_tokens(self.config, held_tokens) * readers,
            spare_tokens=spare_tokens,
        )

    def _answerer(self, request: AskRequest, store: Any) -> Any:
        made = Engine._answerer(self, request, store)
        return replace(made, passes=driven_passes(self.team))


@dataclass(slots=True)
class SharedReader(ContextReader):
    """A reader whose contexts lie on all ranks."""

    def pruned(self, context: Context, keep: float) -> Context:
        """Not over several ranks.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "--keep with --no-cache does not run on several ranks",
            "leave out one of them: a session is pruned where it is saved",
        )

    def _new_store(self, context_tokens: int = 0) -> KVStore:
        context_tokens = context_tokens or len(self.request.context_ids)
        runner = self.runner
        assert isinstance(runner, DrivenRunner)
        return runner.new_shared_store(context_tokens + self.spare_tokens)

    def _worth(self, store: KVStore) -> list[float]:
        assert isinstance(store, DrivenStore)
        return store.worth()
