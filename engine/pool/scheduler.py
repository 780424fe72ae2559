"""Who should lend how much to whom: one round of a greedy search.

First what cannot wait: a request that is longer than its instance has room for takes what others
have to spare. Then what pays: from the smallest batch on, the longest
request of a debtor gives blocks to the creditor with the most room, as many as raise the modelled
tokens per second of the two the most, and none if nothing raises it.

Source: Infinite-LLM v2, its greedy algorithm. Where this differs: the first stage, without which a
long request would wait for ever (it always slows those who lend); and amounts are tried where they
matter: where one more waiting request gets room.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from hipcli.engine.pool.messages import MoveBlocks
from hipcli.engine.pool.performance import PerformanceModel

# Moves from one debtor in one round, at most.
_MOST_MOVES = 16


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What counts as a debtor and as a creditor.

    Args:
        batch_below: an instance with fewer requests, and others waiting, may become a debtor.
        use_below: an instance that uses less than this part of its memory may lend.
        block_tokens: tokens of a block.
        nodes: the host of each instance; pages that have been computed move inside a host only.
            Instances that are not named share one.
    """

    batch_below: int = 64
    use_below: float = 0.9
    block_tokens: int = 64
    nodes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch_below < 1 or not 0 < self.use_below <= 1 or self.block_tokens < 1:
            raise ValueError(
                f"batch_below is {self.batch_below}, use_below {self.use_below}, block_tokens "
                f"{self.block_tokens}; they must be 1 or more, above 0 and at most 1, 1 or more"
            )

    def near(self, one: str, other: str) -> bool:
        """The two are on one host."""
        return self.nodes.get(one) == self.nodes.get(other)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the gManager knows of one instance.

    Args:
        name: of the instance.
        capacity_blocks, free_blocks, lendable_blocks, waiting_blocks: as it last said.
        local_blocks: of its own requests, what each has here.
        unplaced_blocks: of its own requests, what nobody has set aside.
        unplaced_since: when each of them was first heard of, seconds.
        guest_blocks: of other instances' requests.
        away_blocks: of its own requests, by creditor.
        admitted_blocks: of requests that a plan assumes to be admitted, once it is carried out.
    """

    name: str
    capacity_blocks: int
    free_blocks: int
    lendable_blocks: int
    waiting_blocks: tuple[int, ...]
    local_blocks: dict[str, int] = field(default_factory=dict)
    unplaced_blocks: dict[str, int] = field(default_factory=dict)
    unplaced_since: dict[str, float] = field(default_factory=dict)
    guest_blocks: int = 0
    away_blocks: dict[str, int] = field(default_factory=dict)
    admitted_blocks: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        return len(self.local_blocks) + len(self.admitted_blocks)

    @property
    def use(self) -> float:
        """Part of its memory that is in use."""
        return 1 - self.free_blocks / self.capacity_blocks

    @property
    def spare_blocks(self) -> int:
        """What it may lend and its own queue does not need."""
        return max(0, self.lendable_blocks - sum(self.waiting_blocks))

    @property
    def owes(self) -> bool:
        return bool(self.away_blocks or self.unplaced_blocks)


@dataclass(frozen=True, slots=True)
class Plan:
    """One round.

    Args:
        moves: (source, order), in the order in which they were found.
        set_aside: blocks that an instance is to keep free for a request that waits for room.
    """

    moves: tuple[tuple[str, MoveBlocks], ...]
    set_aside: dict[str, int]


class Scheduler:
    """The policy of a gManager: from standings to a plan, with no state of its own."""

    def __init__(self, config: SchedulerConfig, model: PerformanceModel) -> None:
        self._config = config
        self._model = model

    def plan(self, standings: list[Standing]) -> Plan:
        """One round. What it assumes of an instance is what its last heartbeat said."""
        state = {standing.name: standing for standing in standings}
        moves: list[tuple[str, MoveBlocks]] = []
        set_aside = self._place(state, moves)
        # What waits for room must not lose it to what only pays.
        if not set_aside:
            for name in self._debtors(state):
                for _ in range(_MOST_MOVES):
                    order = self._best(name, state)
                    if order is None:
                        break
                    moves.append((name, order))
        return Plan(tuple(moves), set_aside)

    def _place(
        self, state: dict[str, Standing], moves: list[tuple[str, MoveBlocks]]
    ) -> dict[str, int]:
        """Room for blocks that have none; what is missing still is shared out to be set aside.

        First come, first served, and two never ask the same creditors: if each held half of the
        pool they would wait for one another for ever.
        """
        waiting = [
            (one.unplaced_since.get(request, 0.0), blocks, one.name, request)
            for one in state.values()
            for request, blocks in one.unplaced_blocks.items()
        ]
        asked: set[str] = set()
        set_aside: dict[str, int] = {}
        for _, blocks, name, request in sorted(waiting):
            creditors = self._enough(name, request, blocks, state)
            if asked & {one.name for one in creditors}:
                continue
            asked |= {one.name for one in creditors}
            left = self._share_out(name, request, blocks, creditors, state, moves)
            if left:
                share = -(-left // len(creditors)) if creditors else 0
                set_aside |= {one.name: share for one in creditors}
        return set_aside

    def _share_out(
        self,
        name: str,
        request: str,
        left: int,
        creditors: list[Standing],
        state: dict[str, Standing],
        moves: list[tuple[str, MoveBlocks]],
    ) -> int:
        """As evenly as there is room: all attend at the same time, and the slowest is waited for.

        Returns:
            Blocks that are left over.
        """
        by_room = sorted(creditors, key=lambda one: one.lendable_blocks)
        for number, creditor in enumerate(by_room):
            lent = min(-(-left // (len(by_room) - number)), creditor.lendable_blocks)
            if lent:
                moves.append((name, MoveBlocks(request, lent, creditor.name, unplaced=True)))
                self._lend(state, name, creditor.name, lent)
                left -= lent
        return left

    def _enough(
        self, name: str, request: str, blocks: int, state: dict[str, Standing]
    ) -> list[Standing]:
        """Who is asked for room: those on the same host, if theirs can ever be enough, since every
        token of the request would cross the slow network once for each creditor behind it.
        """
        creditors = self._by_room(state, name)
        near = [one for one in creditors if self._config.near(name, one.name)]
        # The owner admits nothing else meanwhile, so all of its memory is for this request.
        owner = state[name]
        room = owner.capacity_blocks - owner.local_blocks.get(request, 0)
        for one in near:
            lent = owner.away_blocks.get(one.name, 0)
            room += max(0, int(self._config.use_below * one.capacity_blocks) - lent)
        return near if room >= blocks else creditors

    def _by_room(self, state: dict[str, Standing], debtor: str) -> list[Standing]:
        """Who may lend to `debtor`: those on its host first, then those with most room."""
        others = [one for one in state.values() if one.name != debtor and not one.owes]

        def rank(one: Standing) -> tuple[bool, int, str]:
            return not self._config.near(debtor, one.name), -one.lendable_blocks, one.name

        return sorted(others, key=rank)

    def _debtors(self, state: dict[str, Standing]) -> list[str]:
        """Those with small batches and a queue, the smallest batch first; no creditor is one."""
        found = [
            one
            for one in state.values()
            if one.waiting_blocks
            and one.batch < self._config.batch_below
            and not (one.guest_blocks or one.unplaced_blocks)
        ]
        return [one.name for one in sorted(found, key=lambda one: (one.batch, one.name))]

    def _best(self, name: str, state: dict[str, Standing]) -> MoveBlocks | None:
        """The move from `name` that gains the most; the state is as if it had been made."""
        debtor = state[name]
        if debtor.guest_blocks or not debtor.local_blocks:
            return None
        request, local = max(debtor.local_blocks.items(), key=lambda item: (item[1], item[0]))
        creditors = [one for one in self._by_room(state, name) if self._may_gain(debtor, one)]
        if not creditors:
            return None
        creditor = creditors[0]
        # The last block stays with the owner, which goes on writing to it.
        most = min(local - 1, creditor.spare_blocks)
        before = self._tokens_per_s(debtor) + self._tokens_per_s(creditor)
        best, best_gain = 0, 0.0
        for blocks in _amounts(debtor, most):
            gains, lends = self._moved(debtor, creditor, request, blocks)
            gain = self._tokens_per_s(gains) + self._tokens_per_s(lends) - before
            if gain > best_gain:
                best, best_gain = blocks, gain
        if not best:
            return None
        state[name], state[creditor.name] = self._moved(debtor, creditor, request, best)
        return MoveBlocks(request, best, creditor.name)

    def _may_gain(self, debtor: Standing, creditor: Standing) -> bool:
        """Pages may move there for gain: room to spare, and no slow network between."""
        roomy = creditor.use < self._config.use_below and creditor.spare_blocks > 0
        return roomy and self._config.near(debtor.name, creditor.name)

    def _moved(
        self, debtor: Standing, creditor: Standing, request: str, blocks: int
    ) -> tuple[Standing, Standing]:
        """The two as they would stand, with what waits and fits then admitted."""
        local = dict(debtor.local_blocks)
        local[request] -= blocks
        free, waiting = debtor.free_blocks + blocks, debtor.waiting_blocks
        admitted = debtor.admitted_blocks
        while waiting and waiting[0] <= free:
            free, waiting, admitted = free - waiting[0], waiting[1:], (*admitted, waiting[0])
        away = dict(debtor.away_blocks)
        away[creditor.name] = away.get(creditor.name, 0) + blocks
        gains = replace(
            debtor, local_blocks=local, free_blocks=free, waiting_blocks=waiting,
            away_blocks=away, admitted_blocks=admitted, lendable_blocks=0,
        )  # fmt: skip
        lends = replace(
            creditor,
            free_blocks=creditor.free_blocks - blocks,
            lendable_blocks=creditor.lendable_blocks - blocks,
            guest_blocks=creditor.guest_blocks + blocks,
        )
        return gains, lends

    def _lend(self, state: dict[str, Standing], debtor: str, creditor: str, blocks: int) -> None:
        one, other = state[debtor], state[creditor]
        away = dict(one.away_blocks)
        away[creditor] = away.get(creditor, 0) + blocks
        state[debtor] = replace(one, away_blocks=away, lendable_blocks=0)
        state[creditor] = replace(
            other,
            free_blocks=other.free_blocks - blocks,
            lendable_blocks=other.lendable_blocks - blocks,
            guest_blocks=other.guest_blocks + blocks,
        )

    def _tokens_per_s(self, one: Standing) -> float:
        tokens = self._config.block_tokens
        return self._model.tokens_per_s(
            one.batch,
            (sum(one.local_blocks.values()) + sum(one.admitted_blocks)) * tokens,
            one.guest_blocks * tokens,
            [blocks * tokens for blocks in one.away_blocks.values()],
            sum(not self._config.near(one.name, creditor) for creditor in one.away_blocks),
        )


def _amounts(debtor: Standing, most: int) -> Iterator[int]:
    """Amounts worth trying, up to `most`: where one more waiting request fits, and quarters."""
    tried = {most * quarter // 4 for quarter in (1, 2, 3, 4)}
    need = -debtor.free_blocks
    for waiting in debtor.waiting_blocks:
        need += waiting
        tried.add(need)
    yield from sorted(blocks for blocks in tried if 0 < blocks <= most)
