"""An instance as the simulation sees it: a real pool's manager, and requests made of numbers."""

from collections import deque
from dataclasses import dataclass, field

from hipcli.engine.pool.rmanager import RManager
from hipcli.engine.pool.simulation.traces import Job


@dataclass(slots=True)
class Running:
    """A request that an instance has taken in, with its blocks.

    Args:
        generated: tokens of its answer so far; a slice may end within one.
        read: its prompt is.
    """

    job: Job
    blocks: int
    generated: float = 0.0
    read: bool = False

    @property
    def tokens(self) -> float:
        return self.job.prompt_tokens + self.generated


@dataclass(slots=True)
class Share:
    """What an instance generates in a slice: tokens here, tokens with each creditor, and how many
    of the loans are on other nodes.
    """

    ready: dict[str, Running] = field(default_factory=dict)
    here: float = 0.0
    away: dict[str, float] = field(default_factory=dict)
    far: int = 0


@dataclass(slots=True)
class Instance:
    """The manager of an instance, those at its door, those inside, and the host it is on."""

    manager: RManager
    node: str
    queue: deque[Job] = field(default_factory=deque)
    running: dict[str, Running] = field(default_factory=dict)
    # Seconds of work other than generation that are still to be done.
    busy_s: float = 0.0

    def wait(self, job: Job, blocks: int) -> None:
        """A request stands at this instance's door."""
        self.queue.append(job)
        self.manager.waiting_blocks += (blocks,)

    def committed(self) -> int:
        """Blocks in use, and those that wait."""
        waiting = sum(self.manager.waiting_blocks)
        return self.manager.capacity_blocks - self.manager.free_blocks + waiting
