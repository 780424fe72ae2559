"""Outputs of several jobs on one stream: in their order, or each as it comes."""

from collections.abc import Mapping
from typing import Any

from hipcli.terminal.output import Sink


class Lanes:
    """Passes on the output of the job whose turn it is, and keeps that of later ones meanwhile.

    Args:
        sink: where all of it goes.
        count: how many jobs there are; they are numbered from 0.
        ordered: False gives every job its turn at once. Then one writes at a time.
        separator: written between the outputs of two jobs.
    """

    def __init__(self, sink: Sink, count: int, ordered: bool, separator: str = "") -> None:
        self._sink = sink
        self._ordered = ordered
        self._separator = separator
        self._lanes = [_Lane(self, number) for number in range(count)]
        self._next = 0
        self._last: int | None = None

    def lane(self, number: int) -> Sink:
        """Where job `number` writes."""
        return self._lanes[number]

    def close(self, number: int) -> None:
        """Job `number` has written all it will."""
        self._lanes[number].closed = True
        while self._next < len(self._lanes) and self._lanes[self._next].closed:
            self._next += 1
            if self._next < len(self._lanes):
                self._pass_on(self._lanes[self._next])

    def finish(self) -> None:
        """No more comes: outputs that are complete go out, though earlier ones are missing."""
        for lane in self._lanes:
            if lane.closed:
                self._pass_on(lane)

    def take(self, lane: "_Lane", piece: "str | Mapping[str, Any]") -> None:
        """A piece of a job's output."""
        lane.kept.append(piece)
        if not self._ordered or lane.number == self._next:
            self._pass_on(lane)

    def _pass_on(self, lane: "_Lane") -> None:
        kept, lane.kept = lane.kept, []
        for piece in kept:
            if self._last not in (None, lane.number) and self._separator:
                self._sink.write(self._separator)
            self._last = lane.number
            if isinstance(piece, str):
                self._sink.write(piece)
            else:
                self._sink.write_json(piece)


class _Lane:
    """The output of one job."""

    def __init__(self, lanes: Lanes, number: int) -> None:
        self._lanes = lanes
        self.number = number
        self.kept: list[str | Mapping[str, Any]] = []
        self.closed = False

    def write(self, text: str) -> None:
        self._lanes.take(self, text)

    def write_json(self, value: Mapping[str, Any]) -> None:
        self._lanes.take(self, value)
