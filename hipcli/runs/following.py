"""Following the engine's events to the result, whatever interrupts."""

from collections.abc import Callable, Generator
from contextlib import closing

from hipcli.engine.events import Event, Result


def shown(events: Generator[Event, None, None], show: Callable[[Event], None]) -> Result:
    """Shows all events but the last, and returns that one, the result.

    Ctrl-C that strikes while something is shown is handed to the engine, which ends the answer in
    good order: its result then says "interrupted".
    """
    # Closed also when it is this side that fails: the engine then keeps what was prefilled.
    with closing(events):
        try:
            event = next(events)
            while not isinstance(event, Result):
                try:
                    show(event)
                except KeyboardInterrupt as interrupt:
                    event = events.throw(interrupt)
                else:
                    event = next(events)
            return event
        except StopIteration:
            raise RuntimeError("the engine ended without a result") from None
