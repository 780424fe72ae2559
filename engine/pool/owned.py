"""The requests that an instance generates: where each of their blocks is."""

from dataclasses import dataclass

from hipcli.engine.errors import HipError
from hipcli.engine.pool.messages import MoveId
from hipcli.engine.pool.slots import Slots


class ShardLostError(HipError):
    """Blocks of a request are nowhere any more: it is read again, never answered without them."""

    code = "failure"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block is.

    Args:
        instance: its name; empty for nowhere.
        slot: there, if it is the owner's instance; else the block's number within `move`.
        move: what brought it to another instance.
    """

    instance: str
    slot: int
    move: MoveId | None = None


# Nobody has set a block aside yet, or the one that had it is dead.
UNPLACED = Place("", -1)
LOST = Place("", -2)


@dataclass(frozen=True, slots=True)
class Loan:
    """Blocks of a request of ours that another instance keeps."""

    request: str
    indices: tuple[int, ...]
    creditor: str
    creditor_epoch: int


class Owned:
    """The block table of an instance's own requests.

    Args:
        name: of the instance.
        slots: its memory.
    """

    def __init__(self, name: str, slots: Slots) -> None:
        self._name = name
        self._slots = slots
        self._places: dict[str, list[Place]] = {}
        self.loans: dict[MoveId, Loan] = {}
        self.lost: set[str] = set()

    def __contains__(self, request: str) -> bool:
        return request in self._places

    def requests(self) -> list[str]:
        return list(self._places)

    def unplaced(self) -> list[str]:
        """Requests with blocks that nobody has set aside yet."""
        return [request for request in self._places if self.count(request, UNPLACED)]

    def places(self, request: str) -> tuple[Place, ...]:
        """Where each block is, oldest first; some may be `UNPLACED` or `LOST`."""
        return tuple(self._places[request])

    def count(self, request: str, place: Place) -> int:
        """How many blocks are `UNPLACED`, or `LOST`."""
        return sum(one is place for one in self._places[request])

    def local(self, request: str) -> list[int]:
        """Numbers of the blocks that are here, oldest first."""
        places = self._places[request]
        return [index for index, place in enumerate(places) if place.instance == self._name]

    def add(self, request: str, blocks: int) -> None:
        """A new request, or more blocks of an old one; the latest are the ones that are here."""
        places = self._places.setdefault(request, [])
        here = self._slots.take(min(blocks, self._slots.free))
        places += [UNPLACED] * (blocks - len(here))
        places += [Place(self._name, slot) for slot in here]

    def settle(self, request: str) -> None:
        """Blocks that nobody has set aside get room here, as far as there is any."""
        places = self._places[request]
        waiting = [index for index, place in enumerate(places) if place is UNPLACED]
        # The latest first: they stay with the instance that goes on writing.
        for index in reversed(waiting[max(0, len(waiting) - self._slots.free) :]):
            (slot,) = self._slots.take(1)
            places[index] = Place(self._name, slot)

    def lend(self, move: MoveId, loan: Loan) -> None:
        """From now on the blocks of `loan` are with its creditor; their room here is free."""
        places = self._places[loan.request]
        freed = [places[index].slot for index in loan.indices if places[index] is not UNPLACED]
        for number, index in enumerate(loan.indices):
            places[index] = Place(loan.creditor, number, move)
        self._slots.give(tuple(freed))
        self.loans[move] = loan

    def lose(self, move: MoveId) -> None:
        """The creditor has nothing of `move` any more."""
        loan = self.loans.pop(move, None)
        if loan is not None:
            for index in loan.indices:
                self._places[loan.request][index] = LOST
            self.lost.add(loan.request)

    def remove(self, request: str) -> dict[MoveId, Loan]:
        """Forgets a request and frees its room here; returns what creditors still have of it."""
        places = self._places.pop(request)
        slots = [place.slot for place in places if place.instance == self._name]
        self._slots.give(tuple(slots))
        self.lost.discard(request)
        gone = {move: loan for move, loan in self.loans.items() if loan.request == request}
        for move in gone:
            del self.loans[move]
        return gone
