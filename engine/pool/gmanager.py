"""The one manager that sees all instances. It decides, and is never on the way of a token.

All it knows comes from heartbeats: one that is started anew asks for full ones and knows as much
as its predecessor within a second. Its view is always a little old, which harms nothing: its orders
are attempts, and the instances reserve room or refuse.
"""

from dataclasses import dataclass, field

from hipcli.engine.pool.messages import (
    CENTRE,
    Dead,
    Entry,
    Envelope,
    Heartbeat,
    Load,
    Message,
    PoolRules,
    SendAll,
    SetAside,
)
from hipcli.engine.pool.scheduler import Scheduler, Standing


@dataclass(slots=True)
class _View:
    """An instance as its heartbeats tell."""

    epoch: int
    number: int
    heard_s: float
    load: Load
    entries: dict[tuple[str, bool], Entry] = field(default_factory=dict)


class GManager:
    """Messages and the time in, messages out.

    Args:
        epoch: of its life: higher than any before.
        rules: of the pool.
        scheduler: what decides.
    """

    def __init__(self, epoch: int, rules: PoolRules, scheduler: Scheduler) -> None:
        self._epoch = epoch
        self._rules = rules
        self._scheduler = scheduler
        self._views: dict[str, _View] = {}
        self._buried: dict[str, int] = {}
        self._set_aside: dict[str, int] = {}
        # When it was first heard that a request waits for room.
        self._since: dict[str, float] = {}

    def handle(self, envelope: Envelope, now_s: float) -> list[Envelope]:
        """Takes in a heartbeat."""
        message, name = envelope.message, envelope.sender
        if not isinstance(message, Heartbeat):
            return []
        if envelope.epoch <= self._buried.get(name, -1):
            # It was only slow. It gives up what the others gave up, and begins a new life.
            return [self._to(name, Dead(name, self._buried[name]))]
        view = self._views.get(name)
        if view is not None and envelope.epoch < view.epoch:
            return []
        out: list[Envelope] = []
        if view is not None and envelope.epoch > view.epoch:
            out, view = self._bury(name), None
        if view is not None and message.number <= view.number:
            return []
        if message.full:
            view = self._views[name] = _View(envelope.epoch, message.number, now_s, message.load)
        elif view is None:
            return [*out, self._to(name, SendAll())]
        elif message.number != view.number + 1:
            # One was lost on the way. It lives, but what is known of it is not complete.
            view.heard_s = now_s
            return [*out, self._to(name, SendAll())]
        view.number, view.heard_s, view.load = message.number, now_s, message.load
        for entry in message.entries:
            if entry.blocks or entry.local and entry.unplaced:
                view.entries[entry.request, entry.local] = entry
            else:
                view.entries.pop((entry.request, entry.local), None)
            if entry.local and entry.unplaced:
                self._since.setdefault(entry.request, now_s)
            elif entry.local:
                self._since.pop(entry.request, None)
        return out

    def tick(self, now_s: float) -> list[Envelope]:
        """Instances that have been silent for too long are dead, and all others are told."""
        silent = [
            name
            for name, view in self._views.items()
            if now_s - view.heard_s > self._rules.silence_s
        ]
        return [envelope for name in silent for envelope in self._bury(name)]

    def schedule(self) -> list[Envelope]:
        """One round of the scheduler, as orders."""
        plan = self._scheduler.plan(self.standings())
        out = [self._to(source, order) for source, order in plan.moves]
        for name in sorted(plan.set_aside.keys() | self._set_aside.keys()):
            if name in self._views:
                out.append(self._to(name, SetAside(plan.set_aside.get(name, 0))))
        self._set_aside = plan.set_aside
        return out

    def instances(self) -> list[str]:
        """Those that are known to live."""
        return sorted(self._views)

    def placement(self) -> dict[str, dict[str, int]]:
        """How many blocks of each request are on which instance."""
        found: dict[str, dict[str, int]] = {}
        for name, view in sorted(self._views.items()):
            for entry in view.entries.values():
                if entry.blocks:
                    found.setdefault(entry.request, {})[name] = entry.blocks
        return found

    def standings(self) -> list[Standing]:
        """What the scheduler needs to know of each instance."""
        owners = {
            entry.request: name
            for name, view in self._views.items()
            for entry in view.entries.values()
            if entry.local
        }
        away: dict[str, dict[str, int]] = {}
        for creditor, view in sorted(self._views.items()):
            for entry in view.entries.values():
                owner = owners.get(entry.request)
                if not entry.local and owner is not None:
                    of_owner = away.setdefault(owner, {})
                    of_owner[creditor] = of_owner.get(creditor, 0) + entry.blocks
        return [
            _standing(name, view, away.get(name, {}), self._since)
            for name, view in self._views.items()
        ]

    def _bury(self, name: str) -> list[Envelope]:
        view = self._views.pop(name)
        self._buried[name] = max(view.epoch, self._buried.get(name, -1))
        others = self.instances()
        return [self._to(other, Dead(name, view.epoch)) for other in others if other != name]

    def _to(self, to: str, message: Message) -> Envelope:
        return Envelope(CENTRE, self._epoch, to, message)


def _standing(name: str, view: _View, away: dict[str, int], since: dict[str, float]) -> Standing:
    own = [entry for entry in view.entries.values() if entry.local]
    return Standing(
        name=name,
        capacity_blocks=view.load.capacity_blocks,
        free_blocks=view.load.free_blocks,
        lendable_blocks=view.load.lendable_blocks,
        waiting_blocks=view.load.waiting_blocks,
        local_blocks={entry.request: entry.blocks for entry in own},
        unplaced_blocks={entry.request: entry.unplaced for entry in own if entry.unplaced},
        unplaced_since={entry.request: since[entry.request] for entry in own if entry.unplaced},
        guest_blocks=sum(entry.blocks for entry in view.entries.values() if not entry.local),
        away_blocks=away,
    )
