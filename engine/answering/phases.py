"""What each layer does at each step of an answer on a device.

Where all keys are on the device all layers select anew at the same steps (`Alike`). In a tiered
store selecting anew means fetching, so the layers take turns (`Staggered`): no step carries the
fetches of all of them. Given pages are fetched again when the window moves (`Given`): until then
nothing else comes to the device but the answer's own pages.
"""

from dataclasses import dataclass
from typing import Protocol

from hipcli.engine.methods.base import Schedule
from hipcli.engine.store.layout import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Phase:
    """What one step does; steps of the same name are the same CUDA graph.

    Args:
        name: of the graph.
        layers: for each layer `keep`, `blocks` or `pages`, as `Schedule.next` says.
        warmed_by: a phase after which this one calls nothing for the first time.
    """

    name: str
    layers: tuple[str, ...]
    warmed_by: str = ""

    @property
    def fetches(self) -> bool:
        """Some layer chooses pages, which a tiered store has to fetch."""
        return "pages" in self.layers


class Phases(Protocol):
    """The phases of one answer's steps.

    Attributes:
        lag_tokens: a layer's window may be that of a step so many tokens before.
    """

    lag_tokens: int

    def next(self, position: int, window_start: int) -> Phase:
        """What the step at `position` does, whose window begins at `window_start`, 0 for dense."""


class Alike:
    """All layers do the same.

    Args:
        schedule: when they select anew; None where nothing is selected.
        num_layers: of the model.
    """

    lag_tokens = 0

    def __init__(self, schedule: Schedule | None, num_layers: int) -> None:
        self._schedule = schedule
        self._phases = {
            what: Phase(what, (what,) * num_layers) for what in ("keep", "blocks", "pages")
        }

    def next(self, position: int, window_start: int) -> Phase:
        """See `Phases.next`."""
        if self._schedule is None:
            return self._phases["keep"]
        return self._phases[self._schedule.next(position, window_start)]


class Given:
    """Given pages are fetched when the window has moved.

    Args:
        num_layers: of the model.
    """

    lag_tokens = 0

    def __init__(self, num_layers: int) -> None:
        self._keep = Phase("keep", ("keep",) * num_layers)
        self._fetch = Phase("pages", ("pages",) * num_layers)
        self._window_start = 0

    def next(self, position: int, window_start: int) -> Phase:
        """See `Phases.next`."""
        moved = window_start != self._window_start
        self._window_start = window_start
        return self._fetch if moved else self._keep


class Staggered:
    """Layer l chooses pages where (step + l) % page_steps == 0, and blocks likewise.

    The window of a layer moves when it chooses pages, so that what leaves the window is a candidate
    at once, as it is where all layers choose together.

    Args:
        schedule: the method's.
        num_layers: of the model.
    """

    def __init__(self, schedule: Schedule, num_layers: int) -> None:
        # Not longer than a page: so far windows may lag, and so long pages stay without being
        # wanted.
        steps = min(schedule.page_steps, PAGE_TOKENS)
        self.lag_tokens = steps
        self._dense = Phase("keep", ("keep",) * num_layers)
        self._first = Phase("pages", ("pages",) * num_layers)
        self._phases = [
            Phase(
                f"{step} of {steps}",
                tuple(_what(step + layer, steps, schedule) for layer in range(num_layers)),
                warmed_by="pages",
            )
            for step in range(steps)
        ]
        self._step = -1

    def next(self, position: int, window_start: int) -> Phase:
        """See `Phases.next`."""
        if window_start == 0:
            return self._dense
        self._step += 1
        if self._step == 0:
            return self._first
        return self._phases[self._step % len(self._phases)]


def _what(step: int, page_steps: int, schedule: Schedule) -> str:
    if step % page_steps == 0:
        return "pages"
    return "blocks" if step % page_steps % schedule.block_steps == 0 else "keep"
