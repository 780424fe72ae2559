"""Pages that really move: in one process, and between two that gloo connects."""

import hashlib
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from hipcli.engine.pool.messages import CENTRE, Envelope, MoveBlocks, MoveId, PoolRules
from hipcli.engine.pool.rmanager import RManager
from hipcli.engine.pool.transport import DistributedTransport, InMemoryTransport, PageMover
from hipcli.engine.store.pages import KVLayout, KVStore

BLOCKS = 8
LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=8, dtype=torch.float32)
RULES = PoolRules()


def memory(seed: int) -> list[torch.Tensor]:
    """Pages per layer of a small store, filled with noise."""
    store = KVStore(LAYOUT, BLOCKS * 64)
    generator = torch.Generator().manual_seed(seed)
    for layer in store.pages:
        layer.copy_(torch.randn(layer.shape, generator=generator))
    return store.pages


def digest(pages: list[torch.Tensor], slots: tuple[int, ...]) -> str:
    content = b"".join(layer[list(slots)].numpy().tobytes() for layer in pages)
    return hashlib.sha256(content).hexdigest()


class Instance:
    """A manager with its pages."""

    def __init__(self, name: str, transport) -> None:
        self.manager = RManager(name, 1, BLOCKS, RULES)
        self.pages = memory(ord(name))
        self.mover = PageMover(self.manager, self.pages, transport)

    def handle(self, envelope: Envelope) -> list[Envelope]:
        now_s = time.monotonic()
        return self.manager.handle(envelope, now_s) + self.mover.work(now_s)

    def lend(self) -> tuple[str, list[Envelope]]:
        """Begins to move four of six blocks to "b"; returns what they hold."""
        self.manager.admit("r", 6)
        slots = tuple(place.slot for place in self.manager.places("r")[:4])
        order = Envelope(CENTRE, 1, "a", MoveBlocks("r", 4, "b"))
        return digest(self.pages, slots), self.handle(order)


def test_pages_arrive_equal_in_one_process() -> None:
    transport = InMemoryTransport()
    ends = {name: Instance(name, transport) for name in "ab"}
    sent, letters = ends["a"].lend()
    while letters:
        letters = [answer for letter in letters for answer in ends[letter.to].handle(letter)]
    place = ends["a"].manager.places("r")[0]
    assert place.instance == "b" and place.move is not None
    assert digest(ends["b"].pages, ends["b"].manager.guest_slots(place.move)) == sent


def rank(name: str, meeting: Path, letters: Connection, result: Connection) -> None:
    """One of two processes; `letters` leads to the other one."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    number = "ab".index(name)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=2)
    one = Instance(name, DistributedTransport({"a": 0, "b": 1}, wait_s=20))
    if name == "a":
        sent, out = one.lend()
        result.send(sent)
    else:
        out = []
    move = MoveId("a", 1, 1)
    while True:
        for letter in out:
            letters.send(letter)
        if one.manager.guest_slots(move) or (name == "a" and one.manager.borrowed("r")):
            break
        out = one.handle(letters.recv())
    if name == "b":
        result.send(digest(one.pages, one.manager.guest_slots(move)))
    dist.barrier()
    dist.destroy_process_group()


def test_pages_arrive_equal_between_two_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    letters = context.Pipe()
    results, children = [], []
    for name, end in zip("ab", letters, strict=True):
        here, there = context.Pipe()
        child = context.Process(target=rank, args=(name, tmp_path / "meet", end, there))
        child.start()
        results.append(here)
        children.append(child)
    try:
        found = [end.recv() if end.poll(60) else None for end in results]
        for child in children:
            child.join(30)
        assert [child.exitcode for child in children] == [0, 0]
    finally:
        for child in children:
            child.kill()
    assert found[0] is not None and found[0] == found[1]
