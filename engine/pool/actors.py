"""The managers as Ray actors: what gives them a clock, a network and a name. Extra: `cluster`.

    centre = start_centre(ray, rules, config, model)
    one = start_instance(ray, Seat("a", 1000, rules, ranks={"a": 0, "b": 1}), make_memory)

Actors find one another by name, so one that is started anew under its name takes its place. Ray
serialises messages between its processes; it is no part of any file.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hipcli.engine.pool.gmanager import GManager
from hipcli.engine.pool.messages import CENTRE, Envelope, PoolRules
from hipcli.engine.pool.owned import Place
from hipcli.engine.pool.performance import PerformanceModel
from hipcli.engine.pool.rmanager import RManager
from hipcli.engine.pool.scheduler import Scheduler, SchedulerConfig
from hipcli.engine.pool.transport import DistributedTransport, PageMover

Memory = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an instance has its place.

    Args:
        name: of the instance.
        capacity_blocks: of its memory.
        rules: of the pool.
        ranks: of all instances in the process group that moves pages.
        meeting: where the ranks of the group meet, as torch.distributed takes it; empty for a
            group that is there already.
        backend: gloo, or nccl on GPUs.
    """

    name: str
    capacity_blocks: int
    rules: PoolRules
    ranks: dict[str, int] = field(default_factory=dict)
    meeting: str = ""
    backend: str = "gloo"


class _Office:
    """What both kinds of actors share: post to others, and a beat of their own."""

    def __init__(self, beat_s: float) -> None:
        import ray

        self._ray = ray
        me = ray.get_runtime_context().current_actor
        # Beats wait their turn among the messages: a manager is never asked two things at once.
        self._clock = threading.Thread(target=_beats, args=(me, beat_s), daemon=True)
        self._clock.start()

    def post(self, letters: list[Envelope]) -> None:
        """Sends letters; one whose addressee is gone is lost, which the managers allow for."""
        for letter in letters:
            try:
                self._ray.get_actor(actor_name(letter.to)).deliver.remote(letter)
            except ValueError:
                continue


def _beats(me: Any, beat_s: float) -> None:
    while True:
        me.beat.remote()
        time.sleep(beat_s)


class InstanceActor:
    """An rManager with its pages.

    Args:
        seat: which instance.
        make_memory: makes its pages, per layer [capacity_blocks, ...].
    """

    def __init__(self, seat: Seat, make_memory: Callable[[], Memory]) -> None:
        if seat.meeting:
            import torch.distributed as dist

            dist.init_process_group(
                seat.backend,
                init_method=seat.meeting,
                rank=seat.ranks[seat.name],
                world_size=len(seat.ranks),
            )
        self.manager = RManager(seat.name, _epoch(), seat.capacity_blocks, seat.rules)
        self.memory = make_memory()
        self._mover = PageMover(self.manager, self.memory, DistributedTransport(seat.ranks))
        self._office = _Office(seat.rules.heartbeat_s / 2)

    def deliver(self, letter: Envelope) -> None:
        """A message arrives."""
        now_s = time.monotonic()
        self._office.post(self.manager.handle(letter, now_s))
        self._office.post(self._mover.work(now_s))

    def beat(self) -> None:
        """Time has passed."""
        self._office.post(self.manager.tick(time.monotonic()))

    def admit(self, request: str, blocks: int, waiting_blocks: tuple[int, ...] = ()) -> bool:
        """A request comes; `waiting_blocks` is what others in the queue need."""
        self.manager.waiting_blocks = waiting_blocks
        return self.manager.admit(request, blocks, partly=blocks > self.manager.capacity_blocks)

    def release(self, request: str) -> None:
        """A request is over."""
        self._office.post(self.manager.release(request))

    def places(self, request: str) -> tuple[Place, ...]:
        """Where its blocks are.

        Raises:
            ShardLostError: some are nowhere.
        """
        return self.manager.places(request)

    def pages(self, places: Sequence[Place]) -> list[torch.Tensor]:
        """Per layer the pages [n, ...] of blocks that are here."""
        slots = [
            place.slot if place.move is None else self.manager.guest_slots(place.move)[place.slot]
            for place in places
        ]
        return [layer[slots] for layer in self.memory]


class CentreActor:
    """The gManager. It may die at any time: the next one hears all from the instances."""

    def __init__(self, rules: PoolRules, config: SchedulerConfig, model: PerformanceModel) -> None:
        self._manager = GManager(_epoch(), rules, Scheduler(config, model))
        self._office = _Office(rules.heartbeat_s)

    def deliver(self, letter: Envelope) -> None:
        """A message arrives."""
        self._office.post(self._manager.handle(letter, time.monotonic()))

    def beat(self) -> None:
        """A round of the scheduler."""
        self._office.post(self._manager.tick(time.monotonic()))
        self._office.post(self._manager.schedule())

    def placement(self) -> dict[str, dict[str, int]]:
        """How many blocks of each request are on which instance."""
        return self._manager.placement()


def actor_name(name: str) -> str:
    """What an instance, or `CENTRE`, is called in Ray."""
    return f"hip pool {name}"


def start_instance(ray: Any, seat: Seat, make_memory: Callable[[], Memory], **options: Any) -> Any:
    """The actor of an instance; `options` are Ray's, such as num_gpus."""
    actor = ray.remote(InstanceActor).options(name=actor_name(seat.name), **options)
    return actor.remote(seat, make_memory)


def start_centre(
    ray: Any, rules: PoolRules, config: SchedulerConfig, model: PerformanceModel, **options: Any
) -> Any:
    """The actor of the gManager."""
    actor = ray.remote(CentreActor).options(name=actor_name(CENTRE), **options)
    return actor.remote(rules, config, model)


def _epoch() -> int:
    """Of a life that begins now."""
    return time.time_ns()
