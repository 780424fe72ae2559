"""What a rank other than 0 does: it waits for commands and performs them."""

from typing import Protocol

from hipcli.engine.distributed.shard import Record, Shard


class Orders(Protocol):
    """Where commands come from."""

    def receive(self) -> Record | None:
        """The next command, however long it takes; None when there are no more.

        Raises:
            RankLostError: another rank is gone.
        """


def serve(shard: Shard, orders: Orders) -> None:
    """Perform commands until there are no more."""
    while (record := orders.receive()) is not None:
        shard.perform(record)
