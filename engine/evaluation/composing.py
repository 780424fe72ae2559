"""From a task and a haystack to a text of a given number of tokens."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.evaluation.case import Draft, Probe
from hipcli.engine.evaluation.placing import Case, Encoder, Haystack, Placed, unit_ends

# Units of a task's own text that are made to learn how many tokens one takes.
_TRIAL_UNITS = 400


class Prompts(Protocol):
    """The product's own prompt, which lies above the engine."""

    @property
    def tokenizer(self) -> Encoder: ...

    def context(self, text: str) -> Placed:
        """The text as the only document of a context."""

    def question(self, question: str) -> tuple[list[int], tuple[int, int]]:
        """Ids of the question, and which of them are its own words."""


def compose(draft: Draft, haystack: Haystack, prompts: Prompts, length_tokens: int) -> Case:
    """Hide a task's needles in a text.

    Args:
        draft: what to hide and ask.
        haystack: where to, unless the task brings a text of its own.
        prompts: makes the prompt.
        length_tokens: of the whole prompt, with the longest question and its answer.

    Raises:
        DoesNotFitError: the task does not fit.
    """
    room = length_tokens - max(_probe_tokens(probe, prompts) for probe in draft.probes)
    frame = len(prompts.context("x").ids) + _count(draft.head + draft.tail, prompts)
    source = haystack
    if draft.units is not None:
        source = _own_text(draft, prompts, room)
    wrapped = [source.wrap.format(needle.sentence) for needle in draft.needles]
    free = room - frame - sum(_count(text, prompts) for text in wrapped)
    num_units = source.within(max(free, 0))
    while num_units > 0:
        text, places = _assemble(draft, source, wrapped, num_units)
        placed = prompts.context(text)
        surplus = len(placed.ids) - room
        if surplus <= 0:
            needles = tuple(placed.tokens_of(*place) for place in places)
            return Case(text, placed, needles, draft.probes)
        # Tokens at the borders of units are not quite additive.
        num_units -= max(1, surplus // 64)
    raise DoesNotFitError(
        f"a task of {len(draft.needles)} needles does not fit {length_tokens} tokens",
        "give a greater --lengths",
    )


def _count(text: str, prompts: Prompts) -> int:
    return len(prompts.tokenizer.encode(text).ids) if text else 0


def _probe_tokens(probe: Probe, prompts: Prompts) -> int:
    return len(prompts.question(probe.question)[0]) + probe.max_new_tokens


def _own_text(draft: Draft, prompts: Prompts, room: int) -> Haystack:
    """The task's own units, as many as fill the room and a few more."""
    assert draft.units is not None, "asked only for tasks with a text of their own"
    trial = draft.units(_TRIAL_UNITS)
    per_unit = unit_ends(trial, prompts.tokenizer)[-1] / len(trial)
    units = draft.units(max(_TRIAL_UNITS, int(room / per_unit * 1.02)))
    return Haystack(iter(units), prompts.tokenizer, "{}\n")


def _assemble(
    draft: Draft, source: Haystack, wrapped: Sequence[str], num_units: int
) -> tuple[str, list[tuple[int, int]]]:
    """The text, and the characters [start, end) of each needle's sentence."""
    ends = np.array(source.ends[:num_units])
    starts = np.concatenate(([0], ends))
    borders = [_nearest(starts, needle.depth * ends[-1]) for needle in draft.needles]
    order = sorted(range(len(wrapped)), key=lambda number: borders[number])
    pieces, length, done = [draft.head], len(draft.head), 0
    places = [(0, 0)] * len(wrapped)
    for number in order:
        between = "".join(source.units[done : borders[number]])
        done = borders[number]
        start = length + len(between) + source.wrap.index("{}")
        places[number] = (start, start + len(draft.needles[number].sentence))
        pieces += [between, wrapped[number]]
        length += len(between) + len(wrapped[number])
    pieces += ["".join(source.units[done:num_units]), draft.tail]
    return "".join(pieces), places


def _nearest(starts: np.ndarray, target: float) -> int:
    """Index of the entry of an ascending array that is nearest to a number."""
    after = int(np.searchsorted(starts, target))
    if after == 0 or after == len(starts):
        return min(after, len(starts) - 1)
    return after if starts[after] - target < target - starts[after - 1] else after - 1
