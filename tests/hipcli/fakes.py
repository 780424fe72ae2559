"""Stand-ins for the engine, and a way to run `hip` inside a test."""

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from hipcli.app import run
from hipcli.engine.events import (
    Event,
    Evidence,
    Notice,
    Phase,
    Progress,
    Result,
    SessionInfo,
    Token,
)
from hipcli.engine.tokenizer.chat import Joint
from hipcli.terminal.console import Console

FIRST_CHARACTER = 16


@dataclass(frozen=True)
class Encoded:
    ids: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Scaffold:
    prefix_ids: tuple[int, ...] = (1, 2)
    suffix_ids: tuple[int, ...] = (3,)
    template: bool = True
    lead: str = ""


class FakeTokenizer:
    """One token per character, so a token's place is the character's."""

    stop_ids = frozenset({0})
    special_ids = frozenset(range(FIRST_CHARACTER))
    vocab_size = 0x110000 + FIRST_CHARACTER
    digest = "0" * 64

    def encode(self, text: str) -> Encoded:
        ids = np.array([ord(character) + FIRST_CHARACTER for character in text], dtype=np.int32)
        starts = np.arange(len(text), dtype=np.int64)
        return Encoded(ids, np.stack([starts, starts + 1], axis=1))

    def decode(self, ids: Any) -> str:
        return "".join(chr(int(i) - FIRST_CHARACTER) for i in ids if i >= FIRST_CHARACTER)

    def scaffold(self, system: str | None) -> Scaffold:
        return Scaffold()

    def turns(self, count: int) -> tuple[Joint, ...]:
        return (Joint((3,)), Joint((4,))) * count + (Joint((3,)),)


@dataclass
class FakeEngine:
    """Answers every question with `pieces`.

    Args:
        pieces: the answer, a token each.
        notices: messages given before the answer.
        evidence: what the heads are said to have voted for.
        failure: raised after the pieces, in place of a result.
        noise: what a careless library prints to stdout meanwhile.
        delay_s: seconds before each piece.
        linger_s: seconds that saving takes when the answer is interrupted.
        on_piece: called before each piece.
        guessed: tokens of the answer that were drafted, and how many of them were accepted.
    """

    pieces: tuple[str, ...] = ("It was ", "Ada.")
    notices: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    failure: BaseException | None = None
    noise: str = ""
    delay_s: float = 0.0
    linger_s: float = 0.0
    on_piece: Callable[[], None] = lambda: None
    guessed: tuple[int, int] = (0, 0)
    finish_reason: str = "stop"
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    requests: list[Any] = field(default_factory=list)
    configs: list[Any] = field(default_factory=list)
    closed_early: bool = False

    @property
    def description(self) -> dict[str, Any]:
        model = {"id": "fake", "revision": "1", "format": "safetensors", "dtype": "float32"}
        machine = {"weights": "int8", "kv_dtype": "float32", "device": "cpu", "heads": None}
        return {"model": model | machine, "method": {"name": "hip", "sink_tokens": 256}}

    def ask(self, request: Any) -> Iterator[Event]:
        self.requests.append(request)
        try:
            yield from self._events(request)
        except (GeneratorExit, KeyboardInterrupt):
            self.closed_early = True
            time.sleep(self.linger_s)
            raise

    def _events(self, request: Any) -> Iterator[Event]:
        context = len(request.context_ids)
        print(self.noise, end="")
        yield Phase("prefill")
        yield Progress("prefill", context // 2, 0, context, 100.0, 1.0, kv_host_bytes=4096)
        yield Progress("prefill", context, 0, context, float("inf"), None)
        for message in self.notices:
            yield Notice("test", message)
        yield Phase("answer")
        done, reason = 0, self.finish_reason
        try:
            for number, piece in enumerate(self.pieces):
                time.sleep(self.delay_s)
                self.on_piece()
                done += 1
                yield Token(number, piece)
        except KeyboardInterrupt:
            self.closed_early = True
            time.sleep(self.linger_s)
            reason = "interrupted"
        if self.failure is not None:
            raise self.failure
        yield Result(
            answer="".join(self.pieces[:done]),
            finish_reason=reason,
            session=SessionInfo(id="0123abcd", created="2026-01-01T00:00:00Z", complete=True),
            evidence=self.evidence,
            context_tokens=context,
            question_tokens=len(request.question_ids),
            cached_tokens=0,
            prefilled_tokens=context,
            generated_tokens=done,
            drafted_tokens=self.guessed[0],
            accepted_tokens=self.guessed[1],
            timings={"load_s": 0.1, "prefill_s": 0.2},
            memory={"kv_host_bytes": 4096},
        )


class Request:
    """A request as the engine gets it: whatever fields the command fills in."""

    def __init__(self, digests: Any, **fields: Any) -> None:
        self.digests = digests
        self.__dict__.update(fields)


@contextlib.contextmanager
def installed(engine: FakeEngine) -> Iterator[None]:
    """Within, `hip ask` opens `engine` instead of a real one."""

    def open_engine(console: Console, config: Any, view: Any) -> FakeEngine:
        engine.configs.append(config)
        return engine

    with (
        mock.patch("hipcli.runs.opening.open_engine", open_engine),
        mock.patch("hipcli.runs.opening.make_request", Request),
    ):
        yield


@dataclass(frozen=True)
class Outcome:
    """What a run of `hip` did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run_hip(
    *words: str,
    engine: FakeEngine | None = None,
    stdin: bytes | None = None,
    on_terminal: bool = False,
    encoding: str = "utf-8",
    width: int = 80,
) -> Outcome:
    """Runs `hip` in this process.

    Args:
        words: the command line after `hip`.
        engine: what answers.
        stdin: what is piped in; None for a terminal nobody types at.
        on_terminal: True makes stdout a terminal.
        encoding: of stdout.
        width: columns of the terminal.
    """
    raw_out, raw_err = io.BytesIO(), io.BytesIO()
    out_kind = Terminal if on_terminal else io.TextIOWrapper
    out = out_kind(raw_out, encoding=encoding, newline="")
    err = io.TextIOWrapper(raw_err, encoding="utf-8", newline="")
    source = Terminal(io.BytesIO()) if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
    with installed(engine or FakeEngine()), contextlib.redirect_stdout(out):
        code = run(words, Console(source, out, err, width=width))
    out.flush()
    err.flush()
    return Outcome(code, raw_out.getvalue().decode(encoding), raw_err.getvalue().decode("utf-8"))
