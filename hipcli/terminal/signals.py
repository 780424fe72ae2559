"""Ctrl-C and SIGTERM become exceptions, so every `finally` on the way out runs.

The engine treats both as `KeyboardInterrupt`: what was prefilled is kept. A second signal does not
wait for that and ends the process at once. Ctrl-Z gives the terminal its cursor back while the
process is stopped.
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
def raised(
    restore_terminal: Callable[[], None], draw_again: Callable[[], None]
) -> Iterator[list[int]]:
    """Within, the first SIGINT or SIGTERM raises, the second one exits.

    Args:
        restore_terminal: called before the process is stopped, or ends at a second signal.
        draw_again: called when it goes on after a stop.

    Yields:
        A list that holds the numbers of the signals received so far.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            restore_terminal()
            os._exit(128 + number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def stop(number: int, frame: FrameType | None) -> None:
        restore_terminal()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Here it goes on, in the foreground again.
        signal.signal(number, stop)
        draw_again()

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell starts background jobs with SIGINT ignored; that is a wish to respect.
        if signal.getsignal(number) is not signal.SIG_IGN:
            previous[number] = signal.signal(number, handle)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        previous[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, stop)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
