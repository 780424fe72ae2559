"""Ranks as real processes, forked from one that has torch loaded and has done nothing yet."""

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hipcli.engine.config import CacheConfig, EngineConfig, GenerationConfig
from hipcli.engine.distributed.control import Address, Heart
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.starting import Crew, config_of
from hipcli.engine.distributed.working import work
from hipcli.engine.engine import Engine
from hipcli.engine.errors import HipError
from hipcli.engine.events import Progress, Result
from hipcli.engine.request import AskRequest

# A process that has run threads must not be forked.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["hipcli.engine.distributed.engine", "transformers.models.llama.modeling_llama"]
)

SETTINGS = {
    "sink_tokens": 64,
    "window_tokens": 128,
    "budget_tokens": 128,
    "prefill_budget_tokens": 128,
    "dense_tokens": 0,
    "candidate_tokens": 256,
    "query_distance_tokens": 100,
}
TOKENS = 64 * 20 + 11


class Forked:
    """A forked process with the face of `subprocess.Popen`."""

    def __init__(self, act, *arguments) -> None:
        self._process = _FORKS.Process(target=_end_with, args=(act, *arguments), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode

    def kill(self):
        self._process.kill()


def _end_with(act, *arguments) -> None:
    torch.set_num_threads(1)
    code = 0
    try:
        act(*arguments)
    except HipError as error:
        sys.stderr.write(f"{error.message}\n")
        code = 1
    sys.stderr.flush()
    os._exit(code)


def be_rank(address: str, config: str, said: Path) -> None:
    """What `python -m hipcli.engine.distributed` does, with stderr in a file."""
    sys.stderr = said.open("w")
    work(config_of(config), Address(**json.loads(address)))


def be_rank_that_stops(address: str, config: str, said: Path) -> None:
    """A rank that stands still while it loads the model."""
    Heart(Address(**json.loads(address)))
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSTOP)


def be_rank_that_never_comes(address: str, config: str, said: Path) -> None:
    """A rank that stands still before it has met the others."""
    time.sleep(60)


def be_rank_0_until_it_reads(address: Address, made: EngineConfig) -> None:
    """Rank 0, which is killed after the first chunk."""
    opened = DistributedEngine.over(made, Crew(2, address))
    for event in opened.ask(request(None)):
        if isinstance(event, Progress) and event.done_tokens:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class ForkedCrew(Crew):
    """Starts the other ranks by forks; what they say lies in `folder`."""

    folder: Path = Path()
    act: Callable[[str, str, Path], None] = be_rank

    def _start_other(self, address: str, config: str) -> None:
        said = self.folder / f"rank{json.loads(address)['rank']}"
        said.touch()
        self._said.append(said.open("rb"))
        self._others.append(Forked(self.act, address, config, said))


def config(model: Path, **changes) -> EngineConfig:
    made = {"method_settings": SETTINGS, "prefill_chunk_tokens": 256}
    made |= {"device": "cpu", "dtype": "float32"}
    return EngineConfig(model.parent, str(model), **made | changes)


def request(cache: Path | None, length: int = TOKENS, **changes) -> AskRequest:
    ids = np.random.default_rng(3).integers(10, 250, length).astype(np.int32)
    made = {
        "context_ids": ids,
        "question_ids": list(range(30, 50)),
        "question_span": (4, 14),
        "prefix_tokens": 10,
        "answer": "attend",
        "generation": GenerationConfig(max_new_tokens=8),
        "cache": CacheConfig(directory=cache),
    }
    return AskRequest(**made | changes)


def engine(model: Path, folder: Path, size: int, stall_s: int = 20, **changes) -> DistributedEngine:
    folder.mkdir(exist_ok=True)
    crew = ForkedCrew(size, None, stall_s, folder=folder)
    return DistributedEngine.over(config(model, **changes), crew)


def alone(model: Path, asked: AskRequest, **changes) -> Result:
    """The result of one rank."""
    *_, result = Engine.open(config(model, **changes)).ask(asked)
    return result


def together(model: Path, folder: Path, size: int, asked: AskRequest, **changes) -> Result:
    """The result of several ranks."""
    opened = engine(model, folder, size, **changes)
    try:
        *_, result = opened.ask(asked)
    except BaseException as error:
        opened.close(error)
        raise
    opened.close()
    return result


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
