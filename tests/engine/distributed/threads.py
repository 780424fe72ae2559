"""Several ranks as threads of one process: everything but the wire."""

import queue
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hipcli.engine.distributed.driver import DrivenRunner, Team
from hipcli.engine.distributed.group import as_bytes
from hipcli.engine.distributed.serving import serve
from hipcli.engine.distributed.shard import Shard


class ThreadGroup:
    """A `Group` whose ranks share a list."""

    def __init__(self, rank: int, size: int, board: list, barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes: Counter[str] = Counter()
        self._board, self._barrier = board, barrier

    def _swap(self, given):
        self._board[self.rank] = given
        self._barrier.wait()
        everyone = list(self._board)
        self._barrier.wait()
        return everyone

    def exchange(self, parts, num_bytes, purpose):
        self.sent_bytes[purpose] += sum(len(p) for p in parts) - len(parts[self.rank])
        received = [theirs[self.rank].clone() for theirs in self._swap(list(parts))]
        assert [len(raw) for raw in received] == list(num_bytes)
        return received

    def gather(self, part, purpose):
        self.sent_bytes[purpose] += len(as_bytes(part)) * (self.size - 1)
        everyone = self._swap(part.clone())
        assert len({(x.shape, x.dtype) for x in everyone}) == 1
        return torch.stack(everyone)

    def broadcast(self, part, purpose):
        return self._swap(part.clone())[0].clone()


class Queues:
    """A channel to threads."""

    def __init__(self, size: int) -> None:
        self.queues = [queue.SimpleQueue() for _ in range(size - 1)]

    def send(self, record) -> None:
        for one in self.queues:
            one.put(dict(record) if record is not None else None)


class Inbox:
    def __init__(self, one: queue.SimpleQueue) -> None:
        self._one = one

    def receive(self):
        return self._one.get(timeout=60)


@contextmanager
def threads(
    runner, method, size: int, placement: str = "interleaved", all_shards: list | None = None
) -> Iterator[DrivenRunner]:
    """Rank 0's runner over `size` ranks that share the weights of `runner`.

    `all_shards` takes what every rank has.
    """
    board, barrier = [None] * size, threading.Barrier(size, timeout=60)
    shards = [
        Shard(runner, method, ThreadGroup(rank, size, board, barrier)) for rank in range(size)
    ]
    if all_shards is not None:
        all_shards.extend(shards)
    channel = Queues(size)
    others = []
    for shard, one in zip(shards[1:], channel.queues, strict=True):
        others.append(threading.Thread(target=_work, args=(shard, one, barrier), daemon=True))
        others[-1].start()
    try:
        yield DrivenRunner(runner, Team(shards[0], channel, placement))
    except BaseException:
        barrier.abort()
        raise
    finally:
        channel.send(None)
        for one in others:
            one.join(60)


def _work(shard: Shard, one: queue.SimpleQueue, barrier: threading.Barrier) -> None:
    try:
        serve(shard, Inbox(one))
    except threading.BrokenBarrierError:
        pass
    except BaseException:
        barrier.abort()
        raise
