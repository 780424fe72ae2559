"""Progress on stderr: one live line on a terminal, else a plain line now and then.

Plain lines hold no escape codes and no carriage returns, whatever FORCE_COLOR says, and are at
least five seconds apart; what came too early for a line gets one when those have passed. The first
sign of life comes before anything slow is imported.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hipcli.engine.events import Progress
from hipcli.terminal.console import Console
from hipcli.terminal.drawing import on_stderr
from hipcli.terminal.formatting import count, duration, one_line, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

PLAIN_INTERVAL_S = 5.0
# Of the live line: the spinner with its space, the bar, and the narrowest line that has one.
_SPINNER_CELLS = 2
_BAR_CELLS = 10
_LEAST_FOR_BAR = 60
# Of the terminal's own sixteen colours, which suit its background, light or dark.
_DONE, _STILL_TO_DO = "cyan", "bright_black"
_PHASES = {
    "load": "loading the model",
    "prefill": "reading into the model",
    "vote": "looking for passages",
    "answer": "answering",
}
# Beside a number of tokens one word says enough.
_WITH_TOKENS = {"prefill": "reading", "question": "reading the question"}


class ProgressView:
    """Shows what is being done, from `with` to the end of the block.

    Args:
        console: stderr is drawn on; its `live` is filled in while a live line is shown.
        shown: False shows nothing at all.
        clock: seconds, monotonic.
    """

    def __init__(
        self, console: Console, shown: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._shown = shown
        self._clock = clock
        # Replaced as one: the thread that draws reads them while others show the next line. Done,
        # and in total: nothing in total shows no bar.
        self._now: tuple[str, Progress | None, tuple[int, int]] = ("", None, (0, 0))
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._last_plain_s: float | None = None
        self._late: threading.Timer | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> "ProgressView":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def phase(self, name: str, detail: str = "") -> None:
        """Work of a new kind begins; an engine's phase or words for people."""
        self._show(f"{_PHASES.get(name, name)}{' ' if detail else ''}{detail}")

    def advance(self, event: Progress) -> None:
        """Shows how far a phase of the engine has come."""
        self._show(described(event), event)

    def answers(self, done: int, total: int, by_whom: str) -> None:
        """Shows how many of the questions of a file are answered."""
        self._show(f"{count(done)} of {count(total)} answers, {by_whom}", part=(done, total))

    def reading(self, done: int, total: int, name: str) -> None:
        """Shows which input is read next."""
        self._show(f"reading {count(done + 1)} of {count(total)}: {name}")

    def fetching(self, name: str, phase: str, done_bytes: int, total_bytes: int) -> None:
        """Shows how much of a model has arrived; `total_bytes` 0 means unknown."""
        of_total = f" of {size(total_bytes)}" if total_bytes else ""
        amount = f": {size(done_bytes)}{of_total}" if done_bytes else ""
        self._show(f"fetching {name}, {phase}{amount}")

    def answer_begins(self) -> None:
        """A line that was to be told later is dropped: it would stand in the answer's text."""
        if self._late is not None:
            with self._lock:
                self._cancel_late()

    def stop(self) -> None:
        """Removes the live line; nothing more is shown."""
        with self._lock:
            self._shown = False
            self._cancel_late()
        if self._live is not None:
            live, self._live = self._live, None
            self._console.live = None
            live.stop()

    def print_above(self, line: str) -> None:
        """Prints a line of text above the live line."""
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(line), soft_wrap=True)

    def restore_terminal(self) -> None:
        """Shows the cursor again; for the way out that unwinds nothing, and for a stop."""
        self._console.write_stderr("\x1b[?25h\n")

    def draw_again(self) -> None:
        """Hides the cursor after a stop; the next drawing shows the line."""
        self._console.write_stderr("\x1b[?25l")

    def _show(
        self, text: str, event: Progress | None = None, part: tuple[int, int] = (0, 0)
    ) -> None:
        if not self._shown:
            return
        part = part if event is None else (event.done_tokens, event.total_tokens)
        self._now = one_line(text), event, part
        if self._live is None and self._console.stderr_is_terminal and self._last_plain_s is None:
            self._start_live()
        if self._live is None:
            with self._lock:
                self._tell_plainly()

    def _tell_plainly(self) -> None:
        now, last = self._clock(), self._last_plain_s
        if last is None or now - last >= PLAIN_INTERVAL_S:
            self._cancel_late()
            self._last_plain_s = now
            self._console.line(self._now[0])
        elif self._late is None:
            self._late = threading.Timer(last + PLAIN_INTERVAL_S - now, self._tell_late)
            self._late.daemon = True
            self._late.start()

    def _tell_late(self) -> None:
        """On the timer's thread: whatever is being done now has had no line yet."""
        with self._lock:
            self._late = None
            if self._shown:
                self._last_plain_s = self._clock()
                self._console.line(self._now[0])

    def _cancel_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _start_live(self) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        rich_console = on_stderr(self._console)
        if rich_console.is_dumb_terminal:
            return
        self._spinner = Spinner("dots", style=_DONE)
        self._live = Live(
            get_renderable=self._render,
            console=rich_console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
        )
        self._console.live = self
        self._live.start(refresh=True)

    def _render(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        columns: list[Any] = [self._spinner]
        room = self._console.width - _SPINNER_CELLS
        text, event, (done, total) = self._now
        if total and room >= _LEAST_FOR_BAR:
            from rich.progress_bar import ProgressBar

            bar = ProgressBar(total, done, _BAR_CELLS, style=_STILL_TO_DO)
            bar.complete_style = bar.finished_style = _DONE
            columns.append(bar)
            room -= _BAR_CELLS + 1
        if event is not None:
            text = described(event, room)
        line = Table.grid(padding=(0, 1))
        line.add_row(*columns, Text(text, no_wrap=True, overflow="ellipsis"))
        return line


def described(event: Progress, width: int | None = None) -> str:
    """One line: phase, tokens done, cached and in total, speed, time left, bytes of KV.

    Args:
        event: what the engine told.
        width: of the terminal; what matters least is left out of a line that is longer.
    """
    places = {"GPU": event.kv_device_bytes, "host": event.kv_host_bytes}
    places["disk"] = event.kv_disk_bytes
    held = " ".join(f"{size(number)} {place}" for place, number in places.items() if number)
    phase = _WITH_TOKENS.get(event.phase, _PHASES.get(event.phase, event.phase))
    pieces = {"done": f"{phase}: {count(event.done_tokens)} of {count(event.total_tokens)} tokens"}
    if event.cached_tokens:
        pieces["cached"] = f" ({count(event.cached_tokens)} cached)"
    if 0 < event.tokens_per_s < math.inf:
        pieces["rate"] = f", {event.tokens_per_s:,.0f} tok/s"
    if event.eta_s is not None:
        pieces["left"] = f", {duration(event.eta_s)} left"
    if held:
        pieces["held"] = f", KV {held}"
    for least in ("held", "cached", "rate", "left"):
        if width is not None and sum(map(len, pieces.values())) > width:
            pieces.pop(least, None)
    line = "".join(pieces.values())
    if width is not None and len(line) > width and event.total_tokens:
        return f"{phase}: {event.done_tokens / event.total_tokens:.0%}"
    return line
