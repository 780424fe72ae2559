"""Tensors between ranks: three operations, each with a count of the bytes it sends.

`Group` is what shards ask of it; `ProcessGroup` does it by torch.distributed. All operations are
collective: every rank calls them in the same order with sizes that follow from what all know.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

# A wait is cut in pieces of this length, between which the other ranks' heartbeats are looked at.
POLL_S = 1.0


class Group(Protocol):
    """Ranks that exchange tensors.

    Attributes:
        rank, size: of this process, and how many there are.
        sent_bytes: bytes that this rank has sent over the wire, by purpose.
        in_graphs: a CUDA graph can hold an operation.
    """

    rank: int
    size: int
    in_graphs: bool
    sent_bytes: Counter[str]

    def exchange(
        self, parts: Sequence[torch.Tensor], num_bytes: Sequence[int], purpose: str
    ) -> list[torch.Tensor]:
        """Send a part to every rank, and take one from each.

        Args:
            parts: uint8 [n_r] for each rank r.
            num_bytes: how many come from each rank.
            purpose: under which the bytes are counted.

        Returns:
            uint8 [num_bytes[r]] of each rank r.
        """

    def gather(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """Parts of the same shape of all ranks, [size, *part.shape], by rank."""

    def broadcast(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """The part of rank 0, which has the shape and dtype of this one."""


class ProcessGroup:
    """See `Group`; over a process group of torch.distributed.

    Args:
        group: NCCL for tensors on GPUs, gloo on CPUs.
        device: where tensors are.
        lost: called while waiting; raises when a rank is gone.
        failed: what to raise for an error of the transport.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        lost: Callable[[], None],
        failed: Callable[[Exception], Exception],
    ) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.in_graphs = device.type == "cuda"
        self.sent_bytes: Counter[str] = Counter()
        self._group = group
        self._device = device
        self._lost = lost
        self._failed = failed

    def exchange(
        self, parts: Sequence[torch.Tensor], num_bytes: Sequence[int], purpose: str
    ) -> list[torch.Tensor]:
        """See `Group.exchange`."""
        sizes = [len(part) for part in parts]
        self.sent_bytes[purpose] += sum(sizes) - sizes[self.rank]
        received = torch.empty(sum(num_bytes), dtype=torch.uint8, device=self._device)
        self._run(
            lambda: dist.all_to_all_single(
                received, torch.cat(list(parts)), list(num_bytes), sizes, self._group, True
            )
        )
        return list(received.split(list(num_bytes)))

    def gather(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """See `Group.gather`."""
        raw = as_bytes(part)
        self.sent_bytes[purpose] += len(raw) * (self.size - 1)
        gathered = torch.empty(self.size, len(raw), dtype=torch.uint8, device=self._device)
        outs = list(gathered.unbind(0))
        self._run(lambda: dist.all_gather(outs, raw, self._group, True))
        return gathered.view(part.dtype).view(self.size, *part.shape)

    def broadcast(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """See `Group.broadcast`."""
        part = part.contiguous()
        if self.rank == 0:
            self.sent_bytes[purpose] += part.numel() * part.element_size() * (self.size - 1)
        self._run(lambda: dist.broadcast(part, 0, self._group, True))
        return part

    def _run(self, start: Callable[[], Any]) -> None:
        """Start an operation and wait for it, as long as all ranks live."""
        try:
            work = start()
            if self._device.type != "cpu":
                # The device's stream waits; the heartbeats' thread aborts the group if need be.
                work.wait()
                return
            while not self._waited(work):
                self._lost()
        except (RuntimeError, dist.DistError) as error:
            raise self._failed(error) from error

    @staticmethod
    def _waited(work: Any) -> bool:
        try:
            work.wait(timedelta(seconds=POLL_S))
            return True
        except RuntimeError:
            # Not over yet, or over with an error of its own.
            if work.is_completed():
                raise
            return False


class StagedGroup:
    """See `Group`; tensors of a GPU over a group of CPUs, by way of the host.

    For ranks that share one GPU, where NCCL refuses to run.

    Args:
        inner: the group of CPUs.
        device: where tensors are.
    """

    def __init__(self, inner: ProcessGroup, device: torch.device) -> None:
        self.rank, self.size = inner.rank, inner.size
        self.in_graphs = False
        self.sent_bytes = inner.sent_bytes
        self._inner = inner
        self._device = device

    def exchange(
        self, parts: Sequence[torch.Tensor], num_bytes: Sequence[int], purpose: str
    ) -> list[torch.Tensor]:
        """See `Group.exchange`."""
        received = self._inner.exchange([part.cpu() for part in parts], num_bytes, purpose)
        # Moved as one, so that parts begin where they would without the detour.
        return list(torch.cat(received).to(self._device).split(list(num_bytes)))

    def gather(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """See `Group.gather`."""
        return self._inner.gather(part.cpu(), purpose).to(self._device)

    def broadcast(self, part: torch.Tensor, purpose: str) -> torch.Tensor:
        """See `Group.broadcast`."""
        return self._inner.broadcast(part.cpu(), purpose).to(self._device)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, uint8 [n]."""
    return x.contiguous().flatten().view(torch.uint8)


def from_bytes(raw: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of these bytes; a copy where they begin at an odd place."""
    if raw.storage_offset() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype).view(*shape)
