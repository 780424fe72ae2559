"""Ctrl-C and SIGTERM become exceptions, so every `finally` on the way out runs.

The engine treats both as `KeyboardInterrupt`: what was prefilled is kept. A second signal does not
wait for that and ends the process at once.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


@contextmanager
def raised(before_exit: Callable[[], None]) -> Iterator[list[int]]:
    """Within, the first SIGINT or SIGTERM raises, the second one exits.

    Args:
        before_exit: called before the process ends at a second signal (restores the terminal).

    Yields:
        A list that holds the numbers of the signals received so far.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            before_exit()
            os._exit(128 + number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell starts background jobs with SIGINT ignored; that is a wish to respect.
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
