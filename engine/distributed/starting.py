"""The ranks of a run: processes that rank 0 starts on its own host, or that torchrun started.

On one host rank 0 opens a store that listens on the loopback interface alone, and starts the other
ranks with its address. What they write is kept, and told if one of them does not even start.
"""

import contextlib
import json
import socket
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.control import STALL_S, Address, RankLostError
from hipcli.engine.distributed.joining import device_of, open_store
from hipcli.engine.errors import UsageError
from hipcli.engine.module_command import module_command
from hipcli.engine.threads import usable_cores

LOOPBACK = "127.0.0.1"
# A process that was told to end does so within this many seconds, or is killed.
END_S = 2.0


@dataclass(slots=True)
class Crew:
    """All ranks of a run.

    Args:
        size: how many.
        joined: where to meet ranks that someone else started; None starts them here.
        stall_s: how long a rank may be silent.
        one_gpu: all ranks started here share a GPU. It holds the weights once a rank and is no
            faster; tests try the ranks of a GPU so on a host that has one.
    """

    size: int = 1
    joined: Address | None = None
    stall_s: int = STALL_S
    one_gpu: bool = False
    _store: Any = None
    _others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _said: list[BinaryIO] = field(default_factory=list)

    def configured(self, config: EngineConfig) -> EngineConfig:
        """The config of rank 0, on its own device; without GPUs all ranks here share the cores.

        Raises:
            UsageError: there are fewer GPUs than ranks on this host.
        """
        address = self.joined or Address(LOOPBACK, 0, 0, self.size)
        made = device_of(config, address)
        if made.device == "cpu" and config.device != "cpu":
            raise UsageError(
                "this machine has no NVIDIA GPU that PyTorch can use",
                f"--gpus {self.size} --device cpu runs {self.size} processes on its processors",
            )
        if made.device != "cpu" and self.joined is None and not self.one_gpu:
            import torch

            if (there := torch.cuda.device_count()) < self.size:
                raise UsageError(
                    f"{self.size} GPUs are wanted, {there} are here", f"--gpus {there}"
                )
        if made.device == "cpu" and self.joined is None and not made.threads:
            # Ranks of one host share its cores.
            return replace(made, threads=max(1, usable_cores() // self.size))
        return made

    def start(self, config: EngineConfig) -> Address:
        """Open the store, start the other ranks if nobody did, and say where all meet."""
        if self.joined is not None:
            self._store, address = open_store(self.joined)
            return address
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((LOOPBACK, 0))
        listener.listen(self.size * 4)
        port = listener.getsockname()[1]
        address = Address(LOOPBACK, port, 0, self.size, 0, self.stall_s, one_gpu=self.one_gpu)
        self._store, address = open_store(address, listener)
        wanted = json.dumps(asdict(config), default=str)
        for rank in range(1, self.size):
            local = 0 if self.one_gpu else rank
            theirs = json.dumps(asdict(replace(address, rank=rank, local_rank=local)))
            self._start_other(theirs, wanted)
        return address

    def _start_other(self, address: str, config: str) -> None:
        program = module_command("hipcli.engine.distributed", address, config)
        # Open as long as the process: it is read when that ends too early.
        said = tempfile.TemporaryFile()  # noqa: SIM115
        self._said.append(said)
        null = subprocess.DEVNULL
        self._others.append(subprocess.Popen(program, stdin=null, stdout=null, stderr=said))

    @property
    def processes(self) -> list[int]:
        """Process ids of the other ranks that were started here, by rank."""
        return [process.pid for process in self._others]

    def check(self) -> None:
        """Raise RankLostError if a rank that was started here has ended."""
        for rank, (process, said) in enumerate(zip(self._others, self._said, strict=True), 1):
            if process.poll() is not None:
                said.seek(0)
                lines = said.read().decode("utf-8", "replace").strip().splitlines()
                last = lines[-1][:300] if lines else f"exit code {process.returncode}"
                raise RankLostError(f"rank {rank} did not start: {last}", "see hip doctor")

    def close(self) -> None:
        """End what was started here."""
        for process in self._others:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            if process.poll() is None:
                process.kill()
                process.wait()
        for said in self._said:
            said.close()
        self._others, self._said, self._store = [], [], None


def config_of(raw: str) -> EngineConfig:
    """The config behind the JSON that `Crew.start` hands on."""
    record = json.loads(raw)
    return EngineConfig(**record | {"models_dir": Path(record["models_dir"])})
