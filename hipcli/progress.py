"""Progress on stderr: one live line on a terminal, else a plain line now and then.

Plain lines hold no escape codes and no carriage returns, whatever FORCE_COLOR says, and are at
least five seconds apart. The first sign of life comes before anything slow is imported.
"""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hipcli.console import Console
from hipcli.engine.events import Progress
from hipcli.formatting import count, duration, one_line, size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

PLAIN_INTERVAL_S = 5.0
_PHASES = {
    "load": "loading the model",
    "prefill": "reading into the model",
    "vote": "looking for passages",
    "answer": "answering",
}


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
        self._text = ""
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._last_plain_s: float | None = None

    def __enter__(self) -> "ProgressView":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def phase(self, name: str, detail: str = "") -> None:
        """Work of a new kind begins; an engine's phase or words for people."""
        self._show(f"{_PHASES.get(name, name)}{' ' if detail else ''}{detail}")

    def advance(self, event: Progress) -> None:
        """Shows how far a phase of the engine has come."""
        self._show(described(event))

    def reading(self, done: int, total: int, name: str) -> None:
        """Shows which input is read next."""
        self._show(f"reading {count(done + 1)} of {count(total)}: {name}")

    def fetching(self, name: str, phase: str, done_bytes: int, total_bytes: int) -> None:
        """Shows how much of a model has arrived; `total_bytes` 0 means unknown."""
        of_total = f" of {size(total_bytes)}" if total_bytes else ""
        amount = f": {size(done_bytes)}{of_total}" if done_bytes else ""
        self._show(f"fetching {name}, {phase}{amount}")

    def stop(self) -> None:
        """Removes the live line; nothing more is shown."""
        self._shown = False
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
        """Shows the cursor again; for the way out that unwinds nothing."""
        self._console.write_stderr("\x1b[?25h\n")

    def _show(self, text: str) -> None:
        if not self._shown:
            return
        self._text = one_line(text)
        if self._live is None and self._console.stderr_is_terminal and self._last_plain_s is None:
            self._start_live()
        if self._live is None:
            now = self._clock()
            if self._last_plain_s is None or now - self._last_plain_s >= PLAIN_INTERVAL_S:
                self._last_plain_s = now
                self._console.line(self._text)

    def _start_live(self) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.spinner import Spinner

        rich_console = RichConsole(
            file=self._console.stderr,
            width=self._console.width,
            force_terminal=True,
            no_color=True if self._console.no_color else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        if rich_console.is_dumb_terminal:
            return
        self._spinner = Spinner("dots", style="cyan")
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

        line = Table.grid(padding=(0, 1))
        line.add_row(self._spinner, Text(self._text, no_wrap=True, overflow="ellipsis"))
        return line


def described(event: Progress) -> str:
    """One line: phase, tokens done, cached and in total, speed, time left, bytes of KV."""
    parts = [f"{count(event.done_tokens)} of {count(event.total_tokens)} tokens"]
    if event.cached_tokens:
        parts[0] += f" ({count(event.cached_tokens)} cached)"
    if 0 < event.tokens_per_s < math.inf:
        parts.append(f"{event.tokens_per_s:,.0f} tok/s")
    if event.eta_s is not None:
        parts.append(f"{duration(event.eta_s)} left")
    if event.kv_bytes:
        parts.append(f"KV {size(event.kv_bytes)}")
    return f"{_PHASES.get(event.phase, event.phase)}: {', '.join(parts)}"
