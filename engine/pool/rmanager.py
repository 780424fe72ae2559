"""The book-keeper of one instance: its blocks, its debts and its loans.

Blocks change hands in four steps, each of which may fail and leaves nothing half done:
`TryMove` (the destination reserves room or refuses), `Coming` with the pages, `Moved` (they are
there), and then the source alone switches its table and frees its own copies. Until that moment
the source's copies count; whatever happens to the rest, a reservation expires, and so does what a
creditor keeps that nobody renews.

The owner's table is the only truth about a request. It gives no place for a lost block, so an
answer can never be merged without a shard.
"""

from collections.abc import Sequence

from hipcli.engine.pool.departures import Departures
from hipcli.engine.pool.errands import Receive, Send
from hipcli.engine.pool.messages import (
    CENTRE,
    Coming,
    Dead,
    Drop,
    Envelope,
    Gone,
    Load,
    Message,
    MoveBlocks,
    Moved,
    MoveId,
    PoolRules,
    Renew,
    SendAll,
    SetAside,
    TryMove,
    TryReply,
)
from hipcli.engine.pool.owned import LOST, UNPLACED, Owned, Place, ShardLostError
from hipcli.engine.pool.slots import Guests, Slots
from hipcli.engine.pool.telling import Telling


class RManager:
    """Messages and the time in, messages and jobs out.

    Args:
        name: of the instance.
        epoch: of its life: higher than any before, such as the time of its start.
        capacity_blocks: of its memory.
        rules: of the pool.

    Attributes:
        waiting_blocks: what each request in the instance's queue needs; the engine says so.
    """

    def __init__(self, name: str, epoch: int, capacity_blocks: int, rules: PoolRules) -> None:
        self.name = name
        self.epoch = epoch
        self.waiting_blocks: tuple[int, ...] = ()
        self._rules = rules
        self._slots = Slots(capacity_blocks)
        self._owned = Owned(name, self._slots)
        self._guests = Guests(self._slots)
        self._leaving = Departures(self._owned)
        self._jobs: list[Send | Receive] = []
        self._epochs: dict[str, int] = {}
        self._set_aside = (0, 0.0)
        self._telling = Telling()
        self._last_move = 0
        self._next_beat_s = float("-inf")

    # What the engine asks.

    @property
    def capacity_blocks(self) -> int:
        return self._slots.capacity

    @property
    def free_blocks(self) -> int:
        return self._slots.free

    @property
    def is_debtor(self) -> bool:
        """Others keep blocks of this instance, or are asked to."""
        return bool(self._owned.loans or self._leaving)

    @property
    def is_creditor(self) -> bool:
        """Blocks of others are here, or expected."""
        return bool(self._guests)

    def may_admit(self, blocks: int, now_s: float) -> bool:
        """True if a request of `blocks` fits here beside what the pool wants set aside, and none
        of this instance's own still waits for room.
        """
        if self._owned.unplaced():
            return False
        aside, until_s = self._set_aside
        return self._slots.free - blocks >= (aside if now_s < until_s else 0)

    def admit(self, request: str, blocks: int, partly: bool = False) -> bool:
        """Gives a new request its blocks, or an old one more of them.

        Args:
            partly: the request does not fit here: it takes what is free, and the gManager looks
                for room for the rest. A creditor never borrows, so for it there is no partly.

        Returns:
            False if nothing was given.
        """
        if blocks > self._slots.free and (not partly or self.is_creditor):
            return False
        self._owned.add(request, blocks)
        return True

    def requests(self) -> list[str]:
        """Generated here."""
        return self._owned.requests()

    def is_placed(self, request: str) -> bool:
        """Every block of the request has a place."""
        return not (self._owned.count(request, UNPLACED) or self._owned.count(request, LOST))

    def places(self, request: str) -> tuple[Place, ...]:
        """Where each block of a request is, oldest first.

        Raises:
            ShardLostError: some are nowhere.
        """
        places = self._owned.places(request)
        missing = sum(place is UNPLACED or place is LOST for place in places)
        if missing:
            raise ShardLostError(
                f"{missing} of {len(places)} blocks of {request} are on no instance",
                "read the request again from its session",
            )
        return places

    def borrowed(self, request: str) -> dict[str, int]:
        """How many blocks of a request are with which creditor."""
        counts: dict[str, int] = {}
        for loan in self._owned.loans.values():
            if loan.request == request:
                counts[loan.creditor] = counts.get(loan.creditor, 0) + len(loan.indices)
        return counts

    def lost_requests(self) -> list[str]:
        """Those with blocks that are gone: to be released and read again from their sessions."""
        return sorted(self._owned.lost)

    def release(self, request: str) -> list[Envelope]:
        """A request is over: all its blocks are free, wherever they are."""
        ended = self._leaving.give_up_request(request)
        ended |= {move: loan.creditor for move, loan in self._owned.remove(request).items()}
        return [self._to(name, Drop((move,))) for move, name in ended.items()]

    def guest_slots(self, move: MoveId) -> tuple[int, ...]:
        """Where blocks of another instance are; empty if they are not here."""
        guest = self._guests.get(move)
        return guest.slots if guest is not None and guest.held else ()

    # What the transport tells.

    def take_jobs(self) -> list[Send | Receive]:
        """What is to be sent and received, each once."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def arrived(self, move: MoveId, now_s: float) -> list[Envelope]:
        """All pages of a move are in their slots."""
        if self._guests.written(move, True, now_s + self._rules.lease_s):
            return [self._to(move.instance, Moved(move))]
        return []

    def failed(self, move: MoveId) -> None:
        """The pages of a move will not come."""
        self._guests.written(move, False, 0.0)

    # What time and other managers tell.

    def tick(self, now_s: float) -> list[Envelope]:
        """What is due: things expire, leases are renewed, the gManager hears how it stands."""
        self._guests.expire(now_s)
        late = self._leaving.expire(now_s)
        out = [self._to(name, Drop((move,))) for move, name in late.items()]
        for request in self._owned.unplaced():
            if not self._leaving.places_under_way(request):
                self._owned.settle(request)
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._rules.heartbeat_s
            out += self._renewals()
            out.append(self._heartbeat())
        return out

    def handle(self, envelope: Envelope, now_s: float) -> list[Envelope]:
        """Answers one message."""
        known = self._epochs.get(envelope.sender)
        if known is not None and envelope.epoch < known:
            return []
        self._epochs[envelope.sender] = envelope.epoch
        if known is not None and envelope.epoch > known and envelope.sender != CENTRE:
            self._bury(envelope.sender, known)
        message, sender = envelope.message, envelope.sender
        match message:
            case MoveBlocks():
                return self._begin(message, now_s)
            case TryMove():
                return [self._to(sender, TryReply(message.move, self._reserve(message, now_s)))]
            case TryReply():
                return self._send(message, envelope, now_s)
            case Coming():
                return self._receive(message, now_s)
            case Moved():
                return self._commit(message.move, sender)
            case Drop():
                for move in message.moves:
                    self._guests.drop(move)
            case Renew():
                return self._renew(message.moves, sender, now_s)
            case Gone():
                for move in message.moves:
                    loan = self._owned.loans.get(move)
                    if loan is not None and loan.creditor == sender:
                        self._owned.lose(move)
            case SetAside():
                self._set_aside = (message.blocks, now_s + self._rules.silence_s)
            case SendAll():
                self._telling.tell_all()
                return [self._heartbeat()]
            case Dead():
                return self._hear_of_death(message)
        return []

    def _to(self, to: str, message: Message) -> Envelope:
        return Envelope(self.name, self.epoch, to, message)

    def _begin(self, order: MoveBlocks, now_s: float) -> list[Envelope]:
        """The gManager's order; it saw things as they were, so much of it may be void."""
        if self.is_creditor or order.request not in self._owned or order.destination == self.name:
            return []
        move = MoveId(self.name, self.epoch, self._last_move + 1)
        expires_s = now_s + self._rules.reserve_s
        blocks = self._leaving.begin(move, order, expires_s)
        if not blocks:
            return []
        self._last_move += 1
        return [self._to(order.destination, TryMove(move, order.request, blocks))]

    def _reserve(self, ask: TryMove, now_s: float) -> bool:
        if ask.move in self._guests:
            # The same message twice.
            return True
        if ask.blocks > self._lendable():
            return False
        expires_s = now_s + self._rules.reserve_s
        self._guests.reserve(ask.move, ask.request, ask.blocks, expires_s)
        return True

    def _lendable(self) -> int:
        """Blocks that may be lent now: none by a debtor, so no debt is recursive."""
        if self.is_debtor or self._owned.unplaced():
            return 0
        share = int(self._rules.lend_share * self._slots.capacity) - self._guests.blocks
        return max(0, min(self._slots.free - self._rules.keep_free_blocks, share))

    def _send(self, reply: TryReply, envelope: Envelope, now_s: float) -> list[Envelope]:
        leaving = self._leaving.get(reply.move)
        if leaving is None or leaving.destination != envelope.sender:
            return [self._to(envelope.sender, Drop((reply.move,)))] if reply.granted else []
        if not reply.granted:
            if leaving.granted_by_epoch is None:
                self._leaving.give_up(reply.move)
            return []
        if leaving.granted_by_epoch is not None:
            return []
        leaving.granted_by_epoch = envelope.epoch
        leaving.expires_s = now_s + self._rules.reserve_s
        if leaving.pages:
            slots = self._leaving.slots(reply.move)
            self._jobs.append(Send(reply.move, leaving.destination, slots))
        return [self._to(leaving.destination, Coming(reply.move, leaving.pages))]

    def _receive(self, coming: Coming, now_s: float) -> list[Envelope]:
        guest = self._guests.get(coming.move)
        if guest is not None and (guest.held or guest.receiving):
            # The same message twice.
            return []
        if guest is not None:
            guest.receiving = True
            if not coming.pages:
                return self.arrived(coming.move, now_s)
        if coming.pages:
            slots = guest.slots if guest is not None else ()
            self._jobs.append(Receive(coming.move, coming.move.instance, slots, coming.pages))
        return []

    def _commit(self, move: MoveId, sender: str) -> list[Envelope]:
        leaving = self._leaving.get(move)
        if leaving is not None and leaving.destination == sender:
            self._leaving.finish(move)
        elif move not in self._owned.loans:
            return [self._to(sender, Drop((move,)))]
        return []

    def _renew(self, moves: Sequence[MoveId], owner: str, now_s: float) -> list[Envelope]:
        gone = []
        for move in moves:
            guest = self._guests.get(move)
            if guest is None or not guest.held:
                gone.append(move)
            else:
                guest.expires_s = now_s + self._rules.lease_s
        return [self._to(owner, Gone(tuple(gone)))] if gone else []

    def _renewals(self) -> list[Envelope]:
        by_creditor: dict[str, list[MoveId]] = {}
        for move, loan in self._owned.loans.items():
            by_creditor.setdefault(loan.creditor, []).append(move)
        return [self._to(name, Renew(tuple(moves))) for name, moves in by_creditor.items()]

    def _hear_of_death(self, dead: Dead) -> list[Envelope]:
        if dead.instance != self.name:
            self._bury(dead.instance, dead.epoch)
            return []
        if dead.epoch < self.epoch:
            return []
        # This instance was silent for too long: the others have given up its loans and debts, so
        # it does too, and goes on in a new life with what is wholly its own.
        for move, _ in self._guests.items():
            self._guests.drop(move)
        self._leaving.give_up_all()
        for move in list(self._owned.loans):
            self._owned.lose(move)
        self.epoch, self._telling = dead.epoch + 1, Telling()
        return [self._heartbeat()]

    def _bury(self, name: str, epoch: int) -> None:
        """A life of another instance is over."""
        self._guests.forget_owner(name, epoch)
        for move, loan in list(self._owned.loans.items()):
            if loan.creditor == name and loan.creditor_epoch <= epoch:
                self._owned.lose(move)
        self._leaving.give_up_destination(name, epoch)

    def _heartbeat(self) -> Envelope:
        load = Load(self._slots.capacity, self._slots.free, self._lendable(), self.waiting_blocks)
        return self._to(CENTRE, self._telling.heartbeat(self._owned, self._guests, load))
