"""A pool of instances in one process, whose messages somebody else delivers, loses or doubles."""

from collections import deque
from dataclasses import dataclass, field

from hipcli.engine.pool.errands import Receive, Send
from hipcli.engine.pool.gmanager import GManager
from hipcli.engine.pool.messages import (
    CENTRE,
    Coming,
    Envelope,
    MoveBlocks,
    MoveId,
    PoolRules,
)
from hipcli.engine.pool.performance import PerformanceModel, Table
from hipcli.engine.pool.rmanager import RManager
from hipcli.engine.pool.scheduler import Scheduler, SchedulerConfig

RULES = PoolRules(heartbeat_s=1, reserve_s=4, lease_s=12, silence_s=6)
# A batch costs as much as one request; attention costs by tokens, shipping a little.
MODEL = PerformanceModel(
    layers=2,
    work_s=Table(((1, 1e-3), (64, 1.1e-3))),
    attention_s=Table(((0, 0.0), (6400, 1e-3))),
    ship_s=Table(((0, 1e-5), (6400, 2e-5))),
)


def scheduler() -> Scheduler:
    return Scheduler(SchedulerConfig(), MODEL)


@dataclass
class World:
    """Instances "a", "b", ... with `capacity` blocks each, and a gManager."""

    count: int = 3
    capacity: int = 8
    now_s: float = 0.0
    managers: dict[str, RManager] = field(default_factory=dict)
    # What each slot holds: the request and the number of the block that was written there.
    memory: dict[str, list[object]] = field(default_factory=dict)
    network: deque[Envelope] = field(default_factory=deque)
    payloads: dict[MoveId, list[object]] = field(default_factory=dict)
    # Pages that are being received, by whom.
    arriving: list[tuple[RManager, Receive]] = field(default_factory=list)
    lives: int = 0
    requests: int = 0

    def __post_init__(self) -> None:
        for name in "abcdefgh"[: self.count]:
            self.start(name)
        self.start_centre()

    def start(self, name: str) -> None:
        """An instance begins a new life: its memory is empty."""
        self.lives += 1
        self.managers[name] = RManager(name, self.lives, self.capacity, RULES)
        self.memory[name] = [None] * self.capacity

    def start_centre(self) -> None:
        """A gManager that knows nothing."""
        self.lives += 1
        self.centre = GManager(self.lives, RULES, scheduler())

    def admit(self, name: str, blocks: int, partly: bool = False) -> str | None:
        manager, request = self.managers[name], f"r{self.requests}"
        if not manager.admit(request, blocks, partly):
            return None
        self.requests += 1
        self.write(name, request)
        return request

    def write(self, name: str, request: str) -> None:
        """The engine computes what is in its own memory."""
        for number, place in enumerate(self.managers[name]._owned.places(request)):
            if place.instance == name:
                self.memory[name][place.slot] = (request, number)

    def release(self, name: str, request: str) -> None:
        self.network.extend(self.managers[name].release(request))

    def order(
        self, source: str, request: str, blocks: int, to: str, unplaced: bool = False
    ) -> None:
        envelope = Envelope(CENTRE, 0, source, MoveBlocks(request, blocks, to, unplaced))
        # An order of whichever gManager it was, arriving now.
        manager = self.managers[source]
        manager._epochs.pop(CENTRE, None)
        self.network.extend(manager.handle(envelope, self.now_s))

    def tick(self, seconds: float) -> None:
        """Time passes, and everybody notices."""
        self.now_s += seconds
        for name, manager in self.managers.items():
            self.network.extend(manager.tick(self.now_s))
            for request in manager.requests():
                self.write(name, request)
        self.network.extend(self.centre.tick(self.now_s))

    def schedule(self) -> None:
        self.network.extend(self.centre.schedule())

    def deliver(self, at: int = 0) -> None:
        """One message arrives, and what it asks for is done."""
        if not self.network:
            return
        self.network.rotate(-at)
        envelope = self.network.popleft()
        self.network.rotate(at)
        if envelope.to == CENTRE:
            self.network.extend(self.centre.handle(envelope, self.now_s))
            return
        manager = self.managers[envelope.to]
        self.network.extend(manager.handle(envelope, self.now_s))
        if isinstance(envelope.message, Coming) and not envelope.message.pages:
            for slot in manager.guest_slots(envelope.message.move):
                self.memory[envelope.to][slot] = None
        self.carry(envelope.to)

    def carry(self, name: str) -> None:
        manager = self.managers[name]
        for job in manager.take_jobs():
            if isinstance(job, Send):
                self.payloads[job.move] = [self.memory[name][slot] for slot in job.slots]
            else:
                self.arriving.append((manager, job))

    def receive(self, at: int = 0) -> None:
        """Pages that were under way have arrived."""
        if not self.arriving:
            return
        manager, job = self.arriving.pop(at)
        name = manager.name
        if self.managers[name] is not manager:
            # It died meanwhile.
            return
        sent = self.payloads.pop(job.move, None)
        if sent is None:
            manager.failed(job.move)
            return
        for slot, content in zip(job.slots, sent, strict=False):
            self.memory[name][slot] = content
        self.network.extend(manager.arrived(job.move, self.now_s))

    def settle(self, rounds: int = 40, schedule: bool = False) -> None:
        """Nothing is lost any more: time passes until all have heard of all."""
        for _ in range(rounds):
            self.tick(1.0)
            if schedule:
                self.schedule()
            while self.network or self.arriving:
                self.deliver()
                self.receive()

    def check(self) -> None:
        """What holds at every moment, whatever was lost, doubled, late or dead."""
        for name, manager in self.managers.items():
            owned, guests = manager._owned, manager._guests
            taken = list(manager._slots._free)
            for request in owned.requests():
                places = owned.places(request)
                taken += [place.slot for place in places if place.instance == name]
            for _, guest in guests.items():
                taken += guest.slots
            # Every block of the memory is free, or has exactly one holder.
            assert sorted(taken) == list(range(self.capacity)), (name, taken)
            assert not (manager.is_debtor and manager.is_creditor), name
            assert not (owned.unplaced() and manager.is_creditor), name
            for request in owned.requests():
                self._check_request(name, request)

    def _check_request(self, name: str, request: str) -> None:
        """Each block has one place, and what is there is that block, or nothing is."""
        places = self.managers[name]._owned.places(request)
        real = [place for place in places if place.instance]
        assert len(set(real)) == len(real), places
        for number, place in enumerate(places):
            if place.instance == name:
                assert self.memory[name][place.slot] == (request, number)
            elif place.instance:
                assert place.move is not None
                slots = self.managers[place.instance].guest_slots(place.move)
                if slots:
                    # None where room was set aside before anything was computed.
                    content = self.memory[place.instance][slots[place.slot]]
                    assert content in (None, (request, number)), content
