"""The blocks of one instance's memory, and those of them that hold other instances' requests."""

from dataclasses import dataclass

from hipcli.engine.pool.messages import MoveId


class Slots:
    """Which of `capacity` blocks are free. A slot is taken whole or not at all."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """`count` free slots, no longer free; there must be so many."""
        assert 0 <= count <= len(self._free), (count, len(self._free))
        return tuple(self._free.pop() for _ in range(count))

    def give(self, slots: tuple[int, ...]) -> None:
        """These are free again."""
        self._free.extend(slots)


@dataclass(slots=True)
class Guest:
    """Blocks set aside for another instance, or holding its pages.

    Args:
        request: whose blocks.
        owner, owner_epoch: who generates it, in which life.
        slots: here, in the order of the move.
        expires_s: when they are free again unless something arrives or the owner renews.
        receiving: pages are being written into them at this moment.
        held: the pages are here.
        doomed: to be freed as soon as nothing is written into them any more.
    """

    request: str
    owner: str
    owner_epoch: int
    slots: tuple[int, ...]
    expires_s: float
    receiving: bool = False
    held: bool = False
    doomed: bool = False


class Guests:
    """What an instance lends, by move."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._by_move: dict[MoveId, Guest] = {}

    def __bool__(self) -> bool:
        return bool(self._by_move)

    def __contains__(self, move: MoveId) -> bool:
        guest = self._by_move.get(move)
        return guest is not None and not guest.doomed

    @property
    def blocks(self) -> int:
        """Reserved and held."""
        return sum(len(guest.slots) for guest in self._by_move.values())

    def items(self) -> list[tuple[MoveId, Guest]]:
        return list(self._by_move.items())

    def get(self, move: MoveId) -> Guest | None:
        """The guest that `move` brings or brought, unless it is on its way out."""
        guest = self._by_move.get(move)
        return None if guest is None or guest.doomed else guest

    def reserve(self, move: MoveId, request: str, blocks: int, expires_s: float) -> None:
        """Room for `blocks` blocks of the source of `move`; there must be so much."""
        slots = self._slots.take(blocks)
        self._by_move[move] = Guest(request, move.instance, move.epoch, slots, expires_s)

    def drop(self, move: MoveId) -> None:
        """Frees what `move` brought; while pages are written into it, once they are."""
        guest = self._by_move.get(move)
        if guest is None:
            return
        if guest.receiving:
            guest.doomed = True
        else:
            self._slots.give(self._by_move.pop(move).slots)

    def written(self, move: MoveId, well: bool, expires_s: float) -> bool:
        """Nothing is written into the guest any more. True if it now holds what was sent."""
        guest = self._by_move.get(move)
        if guest is None or not guest.receiving:
            return False
        guest.receiving = False
        if guest.doomed or not well:
            self.drop(move)
            return False
        guest.held, guest.expires_s = True, expires_s
        return True

    def expire(self, now_s: float) -> None:
        for move, guest in self.items():
            if guest.expires_s <= now_s:
                self.drop(move)

    def forget_owner(self, owner: str, epoch: int) -> None:
        """A life of an instance is over: nobody will ask for its blocks again."""
        for move, guest in self.items():
            if guest.owner == owner and guest.owner_epoch <= epoch:
                self.drop(move)

    def by_request(self) -> dict[str, int]:
        """How many blocks of which request, reserved or held."""
        counts: dict[str, int] = {}
        for guest in self._by_move.values():
            counts[guest.request] = counts.get(guest.request, 0) + len(guest.slots)
        return counts
