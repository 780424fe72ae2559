"""A process becomes a rank: it meets the others, and all agree that they hold the same model."""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.control import (
    START_S,
    Address,
    Commands,
    Heart,
    RankLostError,
    beat_of,
    connect,
)
from hipcli.engine.distributed.group import Group, ProcessGroup, StagedGroup
from hipcli.engine.distributed.shard import Shard
from hipcli.engine.errors import HipError
from hipcli.engine.loaded import LoadedEngine
from hipcli.engine.methods import check_sharded
from hipcli.engine.sessions.identity import identity_key

# A group's own limit on one operation; hearts find a lost rank long before.
OPERATION_S = 7 * 24 * 3600
# Rank 0 waits so long for the first sign of another, which imports PyTorch before it.
COME_S = 600
# Between two looks at whether the others have come.
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """A rank that has met the others.

    Args:
        address: where.
        shard: its part of all work.
        commands: from rank 0.
        heart: beats until it is stopped.
    """

    address: Address
    shard: Shard
    commands: Commands
    heart: Heart

    def leave(self, word: str = "") -> None:
        """Tell the others why, if this rank is to blame."""
        self.heart.leave_word(word)
        dist.destroy_process_group()


# Where rank 0 leaves the port of the ranks' store in torchrun's own.
_PORT = "hip/port"


def open_store(address: Address, listener: socket.socket | None = None) -> tuple[Any, Address]:
    """The key-value store where the ranks meet, in rank 0's process, and where it is.

    Args:
        address: as rank 0 was told.
        listener: a listening socket to take over; None lets it listen on all interfaces.
    """
    timeout = timedelta(seconds=address.stall_s)
    fd = None if listener is None else listener.detach()
    port = 0 if address.agent else address.port
    try:
        store = dist.TCPStore(
            address.host,
            port,
            None,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=fd,
        )
    except RuntimeError as error:
        raise RankLostError(
            f"rank 0 cannot listen at {address.host}:{port}: {str(error).splitlines()[0][:200]}",
            "give a free port of this host",
        ) from error
    if address.agent:
        connect(address).set(_PORT, str(store.port))
    return store, replace(address, port=store.port, agent=False)


def found_store(address: Address) -> Address:
    """Where the ranks' store is, for a rank other than 0; waits until it is there."""
    if not address.agent:
        return address
    agent = connect(address, limit_s=START_S)
    return replace(address, port=int(agent.get(_PORT)), agent=False)


def check_config(config: EngineConfig) -> None:
    """Raise UsageError for what several ranks cannot do yet."""
    check_sharded(config.method)


def device_of(config: EngineConfig, address: Address) -> EngineConfig:
    """The config with the GPU of this rank."""
    if config.device == "cpu" or not torch.cuda.is_available():
        return replace(config, device="cpu")
    return replace(config, device=f"cuda:{address.local_rank}")


def join(
    address: Address, load: Callable[[], LoadedEngine], alive: Callable[[], None] = lambda: None
) -> tuple[Member, LoadedEngine]:
    """Meet the other ranks.

    Args:
        address: where; its store is open.
        load: the model of this rank.
        alive: called while waiting for the others; raises when one did not even start.

    Raises:
        RankLostError: not all ranks came in time.
        HipError: they hold different models.
    """
    store = connect(address, limit_s=START_S)
    # From here on a rank that stands still is noticed, also while models are loaded.
    heart = Heart(address)
    try:
        loaded = load()
        _agree(store, address, loaded, alive, heart)
        # A process that waits in a library for the others cannot be woken by an error.
        heart.on_lost = end_now
        tensors, commands = _groups(address, loaded, heart)
    except BaseException as error:
        lost = isinstance(error, RankLostError)
        heart.leave_word("" if lost else f"{type(error).__name__}: {str(error)[:300]}")
        raise
    if not _over_nccl(address, loaded):
        heart.on_lost = None
    shard = Shard(loaded.runner, loaded.method, tensors, words=commands)
    return Member(address, shard, Commands(commands), heart), loaded


def _agree(
    store: Any,
    address: Address,
    loaded: LoadedEngine,
    alive: Callable[[], None],
    heart: Heart,
) -> None:
    """Wait for the other ranks, and compare what they hold; raises as `join` does."""

    def check() -> None:
        alive()
        heart.check()

    store.set(f"identity/{address.rank}", identity_key(loaded.identity))
    for rank in range(address.size):
        _wait(store, beat_of(rank), rank, alive, COME_S)
        _wait(store, f"identity/{rank}", rank, check, START_S)
        if store.get(f"identity/{rank}").decode("ascii") != identity_key(loaded.identity):
            raise HipError(
                f"rank {rank} holds another model or other settings than rank {address.rank}",
                "give all ranks the same --model, --dtype and --method",
            )


def end_now(error: RankLostError) -> None:
    """End this process, whatever its threads wait for."""
    sys.stderr.write(f"hip: {error.message}; {error.hint}\n")
    sys.stderr.flush()
    os._exit(1)


def _wait(store: Any, name: str, rank: int, alive: Callable[[], None], limit_s: float) -> None:
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        alive()
        try:
            if store.check([name]):
                return
        except RuntimeError as error:
            raise RankLostError("rank 0 is gone", "see what it said") from error
        time.sleep(POLL_S)
    raise RankLostError(f"rank {rank} did not come within {limit_s} s", "see what it said")


def _over_nccl(address: Address, loaded: LoadedEngine) -> bool:
    """False on CPUs, and where ranks share a GPU: NCCL refuses two ranks on one."""
    return loaded.runner.device.type != "cpu" and not address.one_gpu


def _groups(address: Address, loaded: LoadedEngine, heart: Heart) -> tuple[Group, ProcessGroup]:
    """Process groups for tensors where the model is, and for commands."""
    device, cpu = loaded.runner.device, torch.device("cpu")
    limit = timedelta(seconds=OPERATION_S)

    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if _over_nccl(address, loaded) else "gloo",
            store=dist.PrefixStore("group", connect(address)),
            rank=address.rank,
            world_size=address.size,
            timeout=limit,
        )
        orders = dist.new_group(backend="gloo", timeout=limit)
    except RuntimeError as error:
        raise heart.explain(error) from error
    staged = device.type != "cpu" and address.one_gpu
    whole = ProcessGroup(dist.group.WORLD, cpu if staged else device, heart.check, heart.explain)
    tensors = StagedGroup(whole, device) if staged else whole
    return tensors, ProcessGroup(orders, cpu, heart.check, heart.explain)
