"""How pages get from one instance's memory into another's.

A memory is a list of tensors, one a layer, whose first dimension is the slot: `KVStore.pages` is
one. A transport takes the pages of a move out of one and puts them into another; the managers say
when, and hear whether it went well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from hipcli.engine.pool.errands import Receive, Send
from hipcli.engine.pool.messages import Envelope, MoveId
from hipcli.engine.pool.rmanager import RManager

# Of the messages of torch.distributed, told apart by a number of 31 bits.
_TAGS = 1 << 31


class Transport(Protocol):
    """Moves pages; each call belongs to one instance."""

    def send(self, to: str, move: MoveId, pages: Sequence[torch.Tensor]) -> None:
        """Pages [n, ...] of each layer on their way; they are copied before this returns."""

    def receive(self, source: str, move: MoveId, into: Sequence[torch.Tensor]) -> bool:
        """Fills `into`, per layer [n, ...], with what was sent. False if it does not come."""


@dataclass(slots=True)
class InMemoryTransport:
    """Instances of one process: what was sent lies here until somebody takes it."""

    _sent: dict[MoveId, list[torch.Tensor]] = field(default_factory=dict)

    def send(self, to: str, move: MoveId, pages: Sequence[torch.Tensor]) -> None:
        self._sent[move] = [layer.clone() for layer in pages]

    def receive(self, source: str, move: MoveId, into: Sequence[torch.Tensor]) -> bool:
        sent = self._sent.pop(move, None)
        if sent is None:
            return False
        for layer, pages in zip(into, sent, strict=True):
            layer.copy_(pages)
        return True


class DistributedTransport:
    """Instances that are ranks of a process group of torch.distributed: gloo, or NCCL on GPUs.

    Args:
        ranks: the rank of each instance.
        wait_s: how long to wait for pages, or for somebody to take them.
    """

    def __init__(self, ranks: dict[str, int], wait_s: float = 30.0) -> None:
        self._ranks = ranks
        self._wait = timedelta(seconds=wait_s)
        # What is under way must not be freed.
        self._sending: list[tuple[dist.Work | None, torch.Tensor]] = []

    def send(self, to: str, move: MoveId, pages: Sequence[torch.Tensor]) -> None:
        self._sending = [
            (work, data)
            for work, data in self._sending
            if work is not None and not work.is_completed()
        ]
        for number, layer in enumerate(pages):
            data = layer.contiguous().view(torch.uint8).clone()
            work = dist.isend(data, self._ranks[to], tag=_tag(move, number))
            self._sending.append((work, data))

    def receive(self, source: str, move: MoveId, into: Sequence[torch.Tensor]) -> bool:
        try:
            for number, layer in enumerate(into):
                data = torch.empty_like(layer).view(torch.uint8)
                work = dist.irecv(data, self._ranks[source], tag=_tag(move, number))
                if work is not None:
                    work.wait(self._wait)
                layer.copy_(data.view(layer.dtype).view(layer.shape))
        except RuntimeError:
            # The other side is gone, or too slow: the move is off, its reservation expires.
            return False
        return True


def _tag(move: MoveId, layer: int) -> int:
    # Moves of a pair of instances follow one another: a running number keeps them apart.
    return (move.number * 1024 + layer) % _TAGS


class PageMover:
    """Carries out what a manager asks for.

    Args:
        manager: of the instance.
        memory: its pages, per layer [slots, ...].
        transport: the instance's way to the others.
    """

    def __init__(
        self, manager: RManager, memory: Sequence[torch.Tensor], transport: Transport
    ) -> None:
        self._manager = manager
        self._memory = memory
        self._transport = transport

    def work(self, now_s: float) -> list[Envelope]:
        """Sends and receives what is due; returns what the manager has to say about it."""
        out: list[Envelope] = []
        for job in self._manager.take_jobs():
            if isinstance(job, Send):
                slots = list(job.slots)
                self._transport.send(job.to, job.move, [layer[slots] for layer in self._memory])
            else:
                out += self._receive(job, now_s)
        return out

    def _receive(self, job: Receive, now_s: float) -> list[Envelope]:
        # Pages of a move whose reservation is gone are taken all the same: who sends them waits.
        into = [layer.new_empty((job.pages, *layer.shape[1:])) for layer in self._memory]
        if not self._transport.receive(job.source, job.move, into):
            self._manager.failed(job.move)
            return []
        if not job.slots:
            return []
        for layer, pages in zip(self._memory, into, strict=True):
            layer[list(job.slots)] = pages
        return self._manager.arrived(job.move, now_s)
