"""What the managers of a pool say to one another: small, frozen, without tensors.

A block is a page of 64 tokens in all layers. Every message travels in an `Envelope`, which names
the life of the sender: an instance that starts anew has a higher epoch, and what its former life
sent is not listened to.
"""

from dataclasses import dataclass

# The name of the one gManager; instances have any other.
CENTRE = "gmanager"


@dataclass(frozen=True, slots=True, order=True)
class MoveId:
    """One attempt to move blocks: the instance that gives them, its epoch, a running number."""

    instance: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the placement map: an instance has so many blocks of a request.

    Args:
        request: its name, unique in the pool.
        blocks: on this instance; 0 when there are none any more.
        local: True where the request is generated here.
        unplaced: blocks that the request needs and nobody has set aside yet.
    """

    request: str
    blocks: int
    local: bool
    unplaced: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """How an instance stands.

    Args:
        capacity_blocks: of its memory.
        free_blocks: neither used nor reserved.
        lendable_blocks: of the free ones, how many it may lend now.
        waiting_blocks: what each request in its queue needs, first come first.
    """

    capacity_blocks: int
    free_blocks: int
    lendable_blocks: int
    waiting_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """rManager to gManager, every so often: what changed since the last one, or all (`full`)."""

    number: int
    full: bool
    entries: tuple[Entry, ...]
    load: Load


@dataclass(frozen=True, slots=True)
class SendAll:
    """gManager to rManager: I do not know you (any more), send a full heartbeat."""


@dataclass(frozen=True, slots=True)
class MoveBlocks:
    """gManager to the source (move_kvcache): try to move `blocks` blocks of `request`.

    Args:
        request, blocks, destination: what, how much, where to.
        unplaced: blocks that have no place yet, and none that has one.
    """

    request: str
    blocks: int
    destination: str
    unplaced: bool = False


@dataclass(frozen=True, slots=True)
class SetAside:
    """gManager to rManager: keep so many blocks free of requests of your own; 0 for none."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Dead:
    """gManager to all: this life of an instance is over, with all that it lent and borrowed."""

    instance: str
    epoch: int


@dataclass(frozen=True, slots=True)
class TryMove:
    """Source to destination (try_move_kvcache): reserve room, before anything is sent."""

    move: MoveId
    request: str
    blocks: int


@dataclass(frozen=True, slots=True)
class TryReply:
    """Destination to source: room is reserved, or (`granted` False) nothing is."""

    move: MoveId
    granted: bool


@dataclass(frozen=True, slots=True)
class Coming:
    """Source to destination: the pages are on their way; 0 when none has been computed yet."""

    move: MoveId
    pages: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Destination to source: all pages are here. The source alone decides that they count."""

    move: MoveId


@dataclass(frozen=True, slots=True)
class Drop:
    """Source to destination: these moves are over, or were never finished; free their blocks."""

    moves: tuple[MoveId, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """Owner to creditor, every so often: I still need what these moves brought."""

    moves: tuple[MoveId, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """Creditor to owner: of these moves I have nothing."""

    moves: tuple[MoveId, ...]


Message = (
    Heartbeat
    | SendAll
    | MoveBlocks
    | SetAside
    | Dead
    | TryMove
    | TryReply
    | Coming
    | Moved
    | Drop
    | Renew
    | Gone
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message on its way.

    Args:
        sender, epoch: who sent it, in which life.
        to: the name of an instance, or `CENTRE`.
        message: what it says.
    """

    sender: str
    epoch: int
    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Times and limits that all managers of a pool share.

    Args:
        heartbeat_s: between two heartbeats, and between two renewals of leases.
        reserve_s: how long room stays reserved for pages that have not arrived.
        lease_s: how long a creditor keeps blocks that nobody asks to keep.
        silence_s: an instance that has said nothing for so long counts as dead.
        lend_share: part of an instance's memory that it lends at most, 0 to 1.
        keep_free_blocks: never lent: room for the instance's own requests to grow.
    """

    heartbeat_s: float = 1.0
    reserve_s: float = 5.0
    lease_s: float = 15.0
    silence_s: float = 10.0
    lend_share: float = 0.9
    keep_free_blocks: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_s < self.silence_s:
            raise ValueError(
                f"heartbeat_s is {self.heartbeat_s}; it must be above 0 and below silence_s"
            )
        if self.lease_s <= self.heartbeat_s or self.reserve_s <= 0:
            raise ValueError(
                f"lease_s is {self.lease_s}, reserve_s {self.reserve_s}; a lease must outlast a "
                "heartbeat, and a reservation must last at all"
            )
        if not 0 <= self.lend_share <= 1 or self.keep_free_blocks < 0:
            raise ValueError(
                f"lend_share is {self.lend_share}, keep_free_blocks {self.keep_free_blocks}; "
                "they must be from 0 to 1 and not negative"
            )
