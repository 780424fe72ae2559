"""The engine: opens a model and answers requests as a stream of events.

    engine = Engine.open(EngineConfig(models_dir=...))
    for event in engine.ask(request): ...

Opening reads the tokenizer only; weights are loaded by the first question.
"""

import json
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hipcli.engine.answering.passages import ROUND_PAGES, SEPARATOR
from hipcli.engine.answering.word_match import Reader, spellings
from hipcli.engine.config import EngineConfig
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.events import Detail, Event, Notice, Phase, Token
from hipcli.engine.methods import make_config
from hipcli.engine.models import ModelFolder, resolve
from hipcli.engine.models.heads import FoundHeads, HeadWeights, find_heads
from hipcli.engine.request import AskRequest
from hipcli.engine.store.layout import PAGE_TOKENS
from hipcli.engine.tokenizer import Tokenizer, load_tokenizer


@dataclass(slots=True)
class Engine:
    """A model ready to answer; see the module.

    Args:
        config: which model runs how.
        folder: where the model lies.
        tokenizer: its tokenizer.
    """

    config: EngineConfig
    folder: ModelFolder
    tokenizer: Tokenizer
    _loaded: Any = None
    _found_heads: FoundHeads | None = None
    _timings: dict[str, float] = field(default_factory=dict)

    @classmethod
    def open(cls, config: EngineConfig) -> "Engine":
        """Find the model and read its tokenizer.

        Raises:
            ModelError: the model is not here, or hip cannot run it.
            UsageError: unknown method or setting.
        """
        make_config(config.method, config.method_settings)
        folder = resolve(config.model, models_dir=config.models_dir)
        return cls(config, folder, load_tokenizer(folder.path))

    def with_method(self, name: str, settings: dict[str, int]) -> "Engine":
        """The same model with another attention method; weights are shared, loaded now or not.

        Raises:
            UsageError: unknown method or setting.
        """
        make_config(name, settings)
        self._load()
        config = replace(self.config, method=name, method_settings=settings)
        loaded = self._loaded.with_method(config)
        return Engine(config, self.folder, self.tokenizer, loaded, self._found_heads)

    @property
    def loaded(self) -> Any:
        """The model and its method, a `LoadedEngine`; weights are loaded now or before."""
        self._load()
        return self._loaded

    @property
    def runner(self) -> Any:
        """The model with hip's attention, a `Runner`; its weights are loaded now or before."""
        return self.loaded.runner

    @property
    def heads(self) -> HeadWeights | None:
        """The calibration that the votes follow; None where all heads vote alike."""
        return self._calibration().heads

    def _calibration(self) -> FoundHeads:
        if self._found_heads is None:
            self._found_heads = FoundHeads()
            if self.config.calibrated:
                self._found_heads = find_heads(self.folder.path, self.config.models_dir)
        return self._found_heads

    @property
    def description(self) -> dict[str, Any]:
        """Model (id, revision, format, dtype of its arithmetic, of weights and of keys and values,
        device, digest of calibrated heads or None), method (name, settings), hard limit; once
        weights are loaded, with what is used where the settings left it to the machine."""
        used = self._loaded
        method = used.method.config if used else None
        settings = method or make_config(self.config.method, self.config.method_settings)
        dtype = used.dtype if used else self.config.dtype
        weights, kv_dtype = self.config.weights, self.config.kv_dtype
        return {
            "model": {
                "id": self.folder.name,
                "revision": self.folder.revision,
                "format": self.folder.format,
                "dtype": dtype,
                "weights": dtype if weights == "auto" else weights,
                "kv_dtype": dtype if kv_dtype == "auto" else kv_dtype,
                "device": self._loaded.device if self._loaded else self.config.device,
                "heads": self.heads.digest if self.heads else None,
            },
            "method": {"name": self.config.method, **asdict(settings)},
            "context_limit": self.trained_tokens if self.config.method == "dense" else None,
        }

    @property
    def trained_tokens(self) -> int:
        """Length the model was trained on, from its config: the limit of dense attention."""
        config = json.loads((self.folder.path / "config.json").read_text("utf-8"))
        return int(config["max_position_embeddings"])

    def ask(self, request: AskRequest) -> Generator[Event, None, None]:
        """Answer a request.

        Yields:
            Events in the order that `events.py` states.

        Raises:
            HipError: subclasses, each with what to do.
            KeyboardInterrupt: before the first token it passes through, and what was read stays
                in the session; later the result says "interrupted" and has the answer so far.
        """
        yield from self.ask_each((request,))

    def ask_each(self, requests: Sequence[AskRequest]) -> Generator[Event, None, None]:
        """Answer several requests about the same context, which is read once.

        Each answer equals that of `ask` alone: what a question left behind its context is
        forgotten before the next one. The first request says where the context is saved.

        Yields:
            Events as `ask` does, one `Result` for each request.

        Raises:
            ValueError: the contexts differ.
            HipError: as `ask` does.
        """
        first, *others = requests
        if not all(np.array_equal(first.context_ids, other.context_ids) for other in others):
            raise ValueError("requests that are asked together must be about the same context")
        started = time.perf_counter()
        yield Phase("load")
        from hipcli.engine.reading.preflight import check_memory, short_memory

        longest = max(len(request.context_ids) + _spare_tokens(request) for request in requests)
        check_memory(self.config, self.folder, longest, self._held_pages(longest))
        newly = self._loaded is None
        self._load()
        if newly and (short := short_memory(self.config, self._loaded.device)):
            yield Notice("memory_short", short)
        if problem := self._calibration().problem:
            # Told once.
            self._found_heads = FoundHeads()
            yield Notice("heads_ignored", problem)
        from hipcli.engine.device import memory_errors

        plan = None
        with memory_errors(lambda: self._short_of_memory(longest, plan)):
            loaded_at = time.perf_counter()
            for request in requests:
                self._check_fit(request)
            spare_tokens = max(_spare_tokens(request) for request in requests)
            plan = self._loaded.plan(longest)
            if plan is not None:
                yield Detail(plan.describe(self._loaded.runner.layout))
            yield from self._answer_each(requests, spare_tokens, started, loaded_at - started)

    def _answer_each(
        self, requests: Sequence[AskRequest], spare_tokens: int, started: float, load_s: float
    ) -> Generator[Event, None, None]:
        """One reading, then answer after answer, each from the context as it was read."""
        from hipcli.engine.checked import CheckedAnswer

        reader = self._reader(requests[0], spare_tokens)
        checked = CheckedAnswer(
            reader, partial(self._answerer, requests[0]), keep=_kept_unsaved(requests[0])
        )
        yield from self._answer(requests[0], checked, started, load_s)
        for request in requests[1:]:
            started = time.perf_counter()
            checked = CheckedAnswer(
                reader,
                partial(self._answerer, request),
                checked.as_read(),
                keep=_kept_unsaved(request),
            )
            yield from self._answer(request, checked, started, load_s)

    def _answer(
        self, request: AskRequest, checked: Any, started: float, load_s: float
    ) -> Generator[Event, None, None]:
        asked_at = time.perf_counter()
        stream = self.tokenizer.stream()
        pieces: list[str] = []
        first_at, count = asked_at, 0
        try:
            for token in checked.events():
                if not isinstance(token, int):
                    if isinstance(token, Phase) and token.name == "answer" and not count:
                        asked_at = time.perf_counter()
                    yield token
                    continue
                count += 1
                if count == 1:
                    first_at = time.perf_counter()
                    if checked.answerer.look:
                        yield Detail(checked.answerer.look)
                pieces.append(stream.push(token))
                yield Token(token, pieces[-1])
        except KeyboardInterrupt:
            if not count:
                raise
            checked.answerer.finish_reason = "interrupted"
        pieces.append(stream.flush())
        if pieces[-1]:
            yield Token(-1, pieces[-1])
        ended = time.perf_counter()
        context, answerer = checked.asked, checked.answerer
        timings = {
            "load_s": load_s,
            "prefill_s": context.prefill_s,
            "question_s": first_at - asked_at,
            "first_token_s": first_at - started,
            "decode_s": ended - first_at,
            "total_s": ended - started,
        }
        from hipcli.engine.reporting import result_of, tiers_told

        yield from tiers_told(answerer.store)
        told = ("".join(pieces), count)
        yield result_of(request, context, answerer, told, timings)

    def _load(self) -> None:
        if self._loaded is None:
            from hipcli.engine.loaded import LoadedEngine

            self._loaded = LoadedEngine.load(self.config, self.folder, self.tokenizer)

    def _held_pages(self, capacity_tokens: int) -> int | None:
        """As `check_memory` wants it; here one device has all pages."""
        return None

    def _short_of_memory(self, capacity_tokens: int, plan: Any) -> DoesNotFitError:
        """See `LoadedEngine.short_of_memory`."""
        return self._loaded.short_of_memory(capacity_tokens, plan)

    def _check_fit(self, request: AskRequest) -> None:
        if self.config.method != "dense":
            return
        limit = self.trained_tokens
        room = request.generation.max_new_tokens
        total = len(request.context_ids) + len(request.question_ids) + room
        if total > limit:
            raise DoesNotFitError(
                f"{total} tokens ({room} of them for the answer) do not fit the {limit} tokens"
                f" that {self.folder.name} was trained on",
                "use --method hip, or --fit, or a lower --max-new-tokens",
            )

    def _reader(self, request: AskRequest, spare_tokens: int) -> Any:
        from hipcli.engine.reading.context import ContextReader

        capacity_tokens = len(request.context_ids) + spare_tokens
        return ContextReader(
            runner=self._loaded.runner,
            method=self._loaded.method,
            request=request,
            identity=self._loaded.identity,
            chunk_tokens=self._loaded.chunk_tokens(self.config, capacity_tokens),
            spare_tokens=spare_tokens,
        )

    def _answerer(self, request: AskRequest, store: Any) -> Any:
        from hipcli.engine.answering.answerer import Answerer

        start, end = request.own_words
        reader = Reader(
            self.tokenizer.decode(request.question_ids[start:end]),
            lambda text: self.tokenizer.encode(text).ids.tolist(),
            self.tokenizer.decode,
        )
        return Answerer(
            runner=self._loaded.runner,
            method=self._loaded.method,
            store=store,
            request=request,
            budget_tokens=getattr(self._loaded.method.config, "budget_tokens", 2048),
            vote_distance_tokens=self._loaded.vote_distance_tokens,
            separator_ids=self.tokenizer.encode(SEPARATOR).ids.tolist(),
            stop_ids=self.tokenizer.stop_ids,
            words=spellings(reader.question, reader.encode),
            reader=reader,
            head_weights=self._loaded.head_weights(self.heads),
            looks=self.config.looks,
            look_weights=self._loaded.look_weights(self.heads),
        )


def _kept_unsaved(request: AskRequest) -> float:
    """The part of its context that a request keeps where nothing is saved: sessions prune by
    themselves."""
    cache = request.cache
    return cache.keep if cache.directory is None and cache.keep is not None else 1.0


def _spare_tokens(request: AskRequest) -> int:
    """Room that a question and its answer need behind the context."""
    passages = ROUND_PAGES * PAGE_TOKENS if request.rounds > 1 else 0
    return len(request.question_ids) + max(request.generation.max_new_tokens, passages)
