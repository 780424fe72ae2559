"""Moves under way, as their source sees them."""

from dataclasses import dataclass

from hipcli.engine.pool.messages import MoveBlocks, MoveId
from hipcli.engine.pool.owned import UNPLACED, Loan, Owned


@dataclass(slots=True)
class Departure:
    """One move.

    Args:
        request, indices: which blocks of which request.
        destination: where to.
        expires_s: when it is given up.
        pages: how many of the blocks have been computed: all, or 0.
        granted_by_epoch: the life of the destination that reserved room; None so far.
    """

    request: str
    indices: tuple[int, ...]
    destination: str
    expires_s: float
    pages: int
    granted_by_epoch: int | None = None


class Departures:
    """The moves that an instance has begun and not finished.

    Args:
        owned: its block table, which changes when a move is finished, and not before.
    """

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self._by_move: dict[MoveId, Departure] = {}

    def __bool__(self) -> bool:
        return bool(self._by_move)

    def get(self, move: MoveId) -> Departure | None:
        return self._by_move.get(move)

    def begin(self, move: MoveId, order: MoveBlocks, expires_s: float) -> int:
        """Chooses blocks to move; returns how many, up to those ordered. 0 begins nothing."""
        request, indices = order.request, self._movable(order)
        if indices:
            pages = 0 if order.unplaced else len(indices)
            self._by_move[move] = Departure(request, indices, order.destination, expires_s, pages)
        return len(indices)

    def places_under_way(self, request: str) -> bool:
        """Somebody is asked to set blocks of the request aside that have no place yet."""
        return any(
            departure.request == request and not departure.pages
            for departure in self._by_move.values()
        )

    def slots(self, move: MoveId) -> tuple[int, ...]:
        """Where the pages of a move are here; empty when it has none."""
        departure = self._by_move[move]
        places = self._owned.places(departure.request)
        return tuple(places[index].slot for index in departure.indices[: departure.pages])

    def finish(self, move: MoveId) -> None:
        """The pages are at their destination, and from now on they count there."""
        departure = self._by_move.pop(move)
        epoch = departure.granted_by_epoch
        assert epoch is not None, move
        loan = Loan(departure.request, departure.indices, departure.destination, epoch)
        self._owned.lend(move, loan)

    def give_up(self, move: MoveId) -> None:
        self._by_move.pop(move, None)

    def give_up_all(self) -> None:
        self._by_move.clear()

    def expire(self, now_s: float) -> dict[MoveId, str]:
        """Gives up what takes too long; returns the destinations."""
        late = {
            move: departure.destination
            for move, departure in self._by_move.items()
            if departure.expires_s <= now_s
        }
        for move in late:
            del self._by_move[move]
        return late

    def give_up_request(self, request: str) -> dict[MoveId, str]:
        """Gives up the moves of a request; returns the destinations."""
        gone = {
            move: departure.destination
            for move, departure in self._by_move.items()
            if departure.request == request
        }
        for move in gone:
            del self._by_move[move]
        return gone

    def give_up_destination(self, name: str, epoch: int) -> None:
        """A life of an instance is over that had reserved room."""
        for move, departure in list(self._by_move.items()):
            granted = departure.granted_by_epoch
            if departure.destination == name and granted is not None and granted <= epoch:
                del self._by_move[move]

    def _movable(self, order: MoveBlocks) -> tuple[int, ...]:
        """Which blocks: those without a place, or the oldest that are here, but never the last one,
        which is still written to.
        """
        under_way = {
            index
            for departure in self._by_move.values()
            if departure.request == order.request
            for index in departure.indices
        }
        places = self._owned.places(order.request)
        if order.unplaced:
            found = [index for index, place in enumerate(places) if place is UNPLACED]
        else:
            here = self._owned.local(order.request)
            found = [index for index in here if index != len(places) - 1]
        return tuple(index for index in found if index not in under_way)[: order.blocks]
