"""Heartbeats: what of an instance's books the gManager does not know yet."""

from hipcli.engine.pool.messages import Entry, Heartbeat, Load
from hipcli.engine.pool.owned import UNPLACED, Owned
from hipcli.engine.pool.slots import Guests


class Telling:
    """What one life of an instance has told so far."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, bool], Entry] | None = None
        self._beats = 0

    def tell_all(self) -> None:
        """The next heartbeat is a full one."""
        self._told = None

    def heartbeat(self, owned: Owned, guests: Guests, load: Load) -> Heartbeat:
        """All that changed since the last one, or everything."""
        rows: dict[tuple[str, bool], Entry] = {}
        for request in owned.requests():
            unplaced = owned.count(request, UNPLACED)
            here = len(owned.local(request))
            rows[request, True] = Entry(request, here, True, unplaced)
        for request, blocks in guests.by_request().items():
            rows[request, False] = Entry(request, blocks, False)
        told = self._told or {}
        changed = [row for key, row in rows.items() if told.get(key) != row]
        changed += [Entry(name, 0, local) for name, local in told if (name, local) not in rows]
        full, self._told = self._told is None, rows
        self._beats += 1
        return Heartbeat(self._beats, full, tuple(changed), load)
