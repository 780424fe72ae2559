"""A tiny random model, a few contexts, and children that ask about them in processes of their own.

The process that imports this computes with one thread, so it can be forked: a child starts with
the model loaded.
"""

import gc
import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.events import Notice
from hipcli.engine.forward.runner import Runner
from hipcli.engine.request import AskRequest, InputRecord
from hipcli.engine.sessions.disk import Disk
from tests.engine.test_session_integrity import answering
from tests.engine.tiny import random_ids, tiny_model

CHUNK = 128
MODES = ("attend", "share", "reread")
INTERRUPTED, TRACEBACK = 130, 70
# Of a pruned context.
KEEP = 0.4


@dataclass(frozen=True)
class Question:
    """What is asked: a context by name, and an answer mode; by which path, under which name."""

    context: str
    mode: str
    name: str = ""
    on_device: bool = False
    keep: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code (negative: a signal), and what it said."""

    code: int
    tokens: list[int]
    notices: list[str]
    cached_tokens: int
    text: str
    first_tokens: list[int]
    kept_ratio: float = 1.0
    first_kept_ratio: float = 1.0


def contexts() -> dict[str, np.ndarray]:
    """Three contexts: the second goes on where the first ends, the third leaves it midway."""
    first = random_ids(400, seed=1).numpy().astype(np.int32)
    other = random_ids(480, seed=2).numpy().astype(np.int32)
    return {
        "first": first,
        "longer": np.concatenate((first, other[400:])),
        "branching": np.concatenate((first[:260], other[260:450])),
    }


@dataclass
class World:
    """The model and the right answers."""

    runner: Runner = field(default_factory=lambda: Runner(tiny_model("llama")))
    # What a GPU runs, with reference kernels: pages are copied to the files by threads.
    device: Runner = field(default_factory=lambda: Runner(tiny_model("llama"), backend="reference"))
    contexts: dict[str, np.ndarray] = field(default_factory=contexts)
    # By context, mode, and whether all of the context was kept.
    right: dict[tuple[str, str, bool], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for context in self.contexts:
            for mode in MODES:
                for keep in (1.0, KEEP):
                    question = Question(context, mode, keep=keep)
                    said = self._ask(question, None, Disk(), lambda number: None)
                    self.right[context, mode, keep == 1] = said["tokens"]

    def request(self, question: Question, cache: Path | None) -> AskRequest:
        return AskRequest(
            context_ids=self.contexts[question.context],
            question_ids=[7, 8, 9, 10],
            prefix_tokens=3,
            inputs=(InputRecord(question.context, question.context),),
            answer=question.mode,
            generation=GenerationConfig(max_new_tokens=4),
            cache=CacheConfig(cache, name=question.name, keep=question.keep),
        )

    def _ask(
        self, question: Question, cache: Path | None, disk: Disk, on_event: Callable[[int], None]
    ) -> dict[str, Any]:
        runner = self.device if question.on_device else self.runner
        checked = answering(runner, self.request(question, cache), CHUNK, disk)
        tokens, notices = [], []
        for number, event in enumerate(checked.events()):
            on_event(number)
            if isinstance(event, int):
                tokens.append(event)
            elif isinstance(event, Notice):
                notices.append(event.code)
        return {
            "tokens": tokens,
            "notices": notices,
            "cached_tokens": checked.context.cached_tokens,
            "kept_ratio": checked.asked.session.kept_ratio,
        }

    def start(
        self,
        question: Question,
        cache: Path,
        disk: Disk | None = None,
        on_event: Callable[[int], None] = lambda number: None,
        twice: bool = False,
    ) -> "Child":
        """Ask in a child process, `twice` in a row if so wished."""
        fd, path = tempfile.mkstemp()
        os.close(fd)
        pid = os.fork()
        if pid:
            return Child(pid, Path(path))
        code, said = TRACEBACK, {}
        signal.alarm(30)
        gc.disable()
        try:
            said = self._ask(question, cache, disk or Disk(), on_event)
            if twice:
                first = {f"first_{name}": said[name] for name in ("tokens", "kept_ratio")}
                said = self._ask(question, cache, Disk(), on_event) | first
            code = 0
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException:
            said = {"text": traceback.format_exc()}
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Path(path).write_text(json.dumps(said))
        os._exit(code)

    def ask(self, question: Question, cache: Path, **named: Any) -> Outcome:
        """Ask in a child process and wait for it."""
        return self.start(question, cache, **named).wait()


@dataclass
class Child:
    """A process that asks."""

    pid: int
    path: Path

    def kill_in(self, seconds: float, signum: int) -> None:
        """Send a signal after a while; the child may have ended."""
        time.sleep(seconds)
        os.kill(self.pid, signum)

    def wait(self) -> Outcome:
        _, status = os.waitpid(self.pid, 0)
        text = self.path.read_text()
        self.path.unlink()
        said = json.loads(text) if text else {}
        return Outcome(
            os.waitstatus_to_exitcode(status),
            said.get("tokens", []),
            said.get("notices", []),
            said.get("cached_tokens", 0),
            said.get("text", ""),
            said.get("first_tokens", []),
            said.get("kept_ratio", 1.0),
            said.get("first_kept_ratio", 1.0),
        )
