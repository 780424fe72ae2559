"""A group of CPUs carries tensors of another device: the same parts, the same count of bytes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from hipcli.engine.distributed.group import StagedGroup
from tests.engine.distributed.threads import ThreadGroup

CPU = torch.device("cpu")


def swapped(rank: int, board: list, barrier: threading.Barrier) -> tuple:
    group = StagedGroup(ThreadGroup(rank, 2, board, barrier), CPU)
    mine = [torch.full((3 + to,), 10 * rank + to, dtype=torch.uint8) for to in range(2)]
    received = group.exchange(mine, [3 + rank] * 2, "parts")
    gathered = group.gather(torch.full((2, 2), float(rank)), "all")
    first = group.broadcast(torch.full((2,), rank), "one")
    return received, gathered, first, dict(group.sent_bytes)


def test_parts_arrive_and_are_counted():
    board, barrier = [None, None], threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(swapped, rank, board, barrier) for rank in range(2)]
        results = [job.result(60) for job in jobs]
    for rank, (received, gathered, first, sent) in enumerate(results):
        assert [part.tolist() for part in received] == [
            [10 * source + rank] * (3 + rank) for source in range(2)
        ]
        assert gathered[:, 0, 0].tolist() == [0.0, 1.0]
        assert first.tolist() == [0, 0]
        assert sent == {"parts": 4 - rank, "all": 16}
