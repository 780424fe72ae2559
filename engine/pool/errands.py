"""What a manager asks its transport to do: pages to be sent, and pages to be received."""

from dataclasses import dataclass

from hipcli.engine.pool.messages import MoveId


@dataclass(frozen=True, slots=True)
class Send:
    """Pages to be sent now: they are read before the manager is asked anything else."""

    move: MoveId
    to: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Receive:
    """Pages that arrive; `RManager.arrived` or `failed` is called afterwards.

    Args:
        slots: where they go; empty when the reservation is gone: they are taken and thrown away.
        pages: how many.
    """

    move: MoveId
    source: str
    slots: tuple[int, ...]
    pages: int
