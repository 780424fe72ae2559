"""Repeats a call that failed for a passing reason, with growing pauses."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from shop.settings import SupplierSettings

Result = TypeVar("Result")

PASSING = (TimeoutError, ConnectionError)


class GaveUp(Exception):
    """Every attempt failed; the last error is the cause."""


def pauses(settings: SupplierSettings) -> Iterator[float]:
    """The pauses between attempts, in seconds: doubled each time, up to longest_pause_s."""
    pause = settings.first_pause_s
    for _ in range(settings.attempts - 1):
        yield min(pause, settings.longest_pause_s)
        pause *= 2


def call(
    action: Callable[[], Result],
    settings: SupplierSettings,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Calls action until it succeeds, as often as the settings allow.

    Only the errors in PASSING are worth another attempt. A refused order will be refused again,
    so everything else is raised at once.

    Raises:
        GaveUp: after the last attempt.
    """
    waits = pauses(settings)
    for attempt in range(1, settings.attempts + 1):
        try:
            return action()
        except PASSING as error:
            wait = next(waits, None)
            if wait is None:
                raise GaveUp(f"no success in {attempt} attempts") from error
            sleep(wait)
    raise GaveUp("no attempts allowed")
