"""Commands from rank 0 to the others, and who is still there.

Every rank counts up a number of its own in a key-value store on rank 0; who stops doing so for the
time limit is lost, whatever all wait for. Who ends for another reason leaves word of it. A store's
client serves one thread at a time, so the heart has a connection of its own.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hipcli.engine.distributed.group import POLL_S, ProcessGroup
from hipcli.engine.distributed.shard import Record
from hipcli.engine.errors import HipError

# Seconds between two beats of a heart.
BEAT_S = 0.5
# Beats that a rank which was killed has missed when it is named.
MISSED_BEATS = 4
STALL_S = 30
# Rank 0 may read documents for long before it needs the others.
START_S = 3600


class RankLostError(HipError):
    """Another rank died, stopped answering, or ended with an error of its own."""

    # Nothing can be settled with ranks that are gone.
    lost = True


@dataclass(frozen=True, slots=True)
class Address:
    """Where the ranks meet.

    Args:
        host, port: of the key-value store.
        rank, size: of this process, and how many there are.
        local_rank: which of its host's GPUs is this rank's.
        stall_s: how long a rank may be silent.
        agent: the store is torchrun's own, in which rank 0 leaves the port of ours.
        one_gpu: all ranks compute on the same GPU, `local_rank` of the host.
    """

    host: str
    port: int
    rank: int
    size: int
    local_rank: int = 0
    stall_s: int = STALL_S
    agent: bool = False
    one_gpu: bool = False


def beat_of(rank: int) -> str:
    """The number that a rank counts up, in the ranks' store."""
    return f"beat/{rank}"


class Heart:
    """Beats for this rank, and listens to the others; see the module.

    Args:
        address: of the ranks.

    Attributes:
        on_lost: called once, from the heart's thread, when another rank is lost.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._store = connect(address)
        self._heard: dict[int, tuple[str, float]] = {}
        self._words: dict[int, str] = {}
        self._silent_since: float | None = None
        self._stop = threading.Event()
        self.on_lost: Callable[[RankLostError], None] | None = None
        self._thread = threading.Thread(target=self._beat, name="hip-heart", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            try:
                self._store.set(beat_of(self._address.rank), str(count))
                self._listen()
                self._silent_since = None
            except RuntimeError:
                # The store went with rank 0, or rank 0 does not let it answer.
                self._silent_since = self._silent_since or time.monotonic()
            if (on_lost := self.on_lost) is not None and (found := self.lost()) is not None:
                on_lost(found)
                return
            self._stop.wait(BEAT_S)

    def _listen(self) -> None:
        now = time.monotonic()
        others = [rank for rank in range(self._address.size) if rank != self._address.rank]
        for rank in others:
            for name, kept in ((beat_of(rank), self._heard), (f"word/{rank}", self._words)):
                if not self._store.check([name]):
                    continue
                value = self._store.get(name).decode("utf-8")
                if name.startswith("word"):
                    self._words[rank] = value
                elif kept.get(rank, ("", 0))[0] != value:
                    self._heard[rank] = (value, now)

    def silent(self, limit_s: float) -> int | None:
        """A rank that was not heard of for so long, the first to fall silent; None if there is
        none. Ranks that left word, and ended, are not silent."""
        now = time.monotonic()
        if self._silent_since is not None and now - self._silent_since > limit_s:
            return 0
        quiet = [
            (heard, rank)
            for rank, (_, heard) in list(self._heard.items())
            if now - heard > limit_s and rank not in self._words
        ]
        return min(quiet)[1] if quiet else None

    def lost(self) -> RankLostError | None:
        """What to raise where a rank left word or is silent for the time limit."""
        for rank, word in list(self._words.items()):
            if word:
                return RankLostError(f"rank {rank} failed: {word}", _WHAT_TO_DO)
        limit = self._address.stall_s
        if (silent := self.silent(limit)) is None:
            return None
        return RankLostError(f"rank {silent} was not heard of for {limit} s", _WHAT_TO_DO)

    def check(self) -> None:
        """Raise what `lost` says."""
        if (found := self.lost()) is not None:
            raise found

    def explain(self, error: Exception) -> RankLostError:
        """What to raise for an error of the transport: it says that a rank is gone, not which."""
        ends = time.monotonic() + self._address.stall_s + MISSED_BEATS * BEAT_S
        while time.monotonic() < ends:
            if (found := self.lost()) is not None:
                return found
            rank = self.silent(MISSED_BEATS * BEAT_S)
            if rank is not None:
                return RankLostError(f"rank {rank} died", _WHAT_TO_DO)
            time.sleep(BEAT_S / 2)
        first = str(error).splitlines()[0]
        return RankLostError(f"the ranks lost one another: {first[:200]}", _WHAT_TO_DO)

    def leave_word(self, word: str) -> None:
        """Tell the others why this rank ends; empty where another one is to blame."""
        self._stop.set()
        self._thread.join(2)
        try:
            self._store.set(f"word/{self._address.rank}", word)
        except RuntimeError:
            # Nobody is left to read it.
            return

    def stop(self) -> None:
        """Beat no more."""
        self._stop.set()


_WHAT_TO_DO = "ask again, with as many ranks as are left or none: what was read is in the session"


class Commands:
    """Commands from rank 0, which may come seconds or hours after one another.

    Args:
        group: all ranks, for tensors on CPUs; nothing else goes over it.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def send(self, record: Record | None) -> None:
        """Send a command; None says that there are no more. Raises RankLostError."""
        raw = bytearray(json.dumps(record).encode("ascii"))
        self._group.broadcast(torch.tensor([len(raw)]), "commands")
        self._group.broadcast(torch.frombuffer(raw, dtype=torch.uint8), "commands")

    def receive(self) -> Record | None:
        """The next command. Raises RankLostError."""
        length = self._group.broadcast(torch.zeros(1, dtype=torch.long), "commands")
        raw = torch.empty(int(length), dtype=torch.uint8)
        record: Record | None = json.loads(bytes(self._group.broadcast(raw, "commands").numpy()))
        return record


def connect(address: Address, *, limit_s: int = 0) -> Any:
    """A connection to the ranks' store. Raises RankLostError when nobody answers."""
    limit_s = limit_s or address.stall_s
    try:
        _await_listener(address, limit_s)
        return dist.TCPStore(address.host, address.port, None, False, timedelta(seconds=limit_s))
    except (RuntimeError, OSError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise RankLostError(
            f"nobody answers at {address.host}:{address.port}: {said[0][:200]}",
            "start all ranks at about the same time, with the address of rank 0",
        ) from error


def _await_listener(address: Address, limit_s: float) -> None:
    """Wait until somebody listens there; a store's own wait lets no signal through.

    Raises:
        OSError: nobody did in time, or the host's name is not known for the time limit of a rank.
    """
    began = time.monotonic()
    while True:
        try:
            socket.create_connection((address.host, address.port), timeout=POLL_S).close()
            return
        except OSError as error:
            known = not isinstance(error, socket.gaierror)
            if time.monotonic() - began > (limit_s if known else min(limit_s, address.stall_s)):
                raise
        time.sleep(BEAT_S / 2)
