"""Adds up the rows of an evaluation: a table of means, and grids of depth by length."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

METRICS = ("score", "recall_1", "recall_24", "all_24", "read_tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Line:
    """Means over all questions of one subject, task, haystack and length.

    Args:
        method, answer: who answered, how.
        task: with its wording, as in "alike_8, reworded".
        haystack, length: where.
        asked: how many questions.
        means: by the names of METRICS; None where a metric has no value.
        error: why there are no values; "" otherwise.
    """

    method: str
    answer: str
    task: str
    haystack: str
    length: int
    asked: int
    means: dict[str, float | None]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Mean of one metric by depth and length.

    Args:
        title: whose.
        depths: rows, ascending; None for tasks without a depth.
        lengths: columns, ascending.
        values: by (depth, length); a cell that was not asked is missing.
    """

    title: str
    depths: tuple[float | None, ...]
    lengths: tuple[int, ...]
    values: dict[tuple[float | None, int], float]


def task_name(row: dict[str, Any]) -> str:
    """The task with its wording."""
    return f"{row['task']}, {row['wording']}" if row.get("wording") else str(row["task"])


def answer_name(row: dict[str, Any]) -> str:
    """The answer mode, how the heads vote if not alike and once, how many pages are looked at
    again if any, and how much of the context it had if not all of it."""
    keep, rounds = row.get("keep", 1.0), row.get("rounds", 1)
    name = str(row["answer"]) if rounds == 1 else f"{row['answer']}, {rounds} rounds"
    name = f"{name}, calibrated" if row.get("heads") else name
    name = f"{name}, {row['looks']} looks" if row.get("looks") else name
    return name if keep == 1 else f"{name}, {keep:g} kept"


def lines(rows: Iterable[dict[str, Any]]) -> list[Line]:
    """The table, in the order in which its lines first appear."""
    groups: dict[tuple[str, str, str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        name, answer = row["method"], answer_name(row)
        key = (name, answer, task_name(row), row["haystack"], row["length"])
        groups.setdefault(key, []).append(row)
    return [_line(key, group) for key, group in groups.items()]


def _line(key: tuple[str, str, str, str, int], group: list[dict[str, Any]]) -> Line:
    asked = [question for row in group for question in row.get("questions", ())]
    for question in asked:
        question["seconds"] = question["prefill_s"] + question["answer_s"]
    means = {name: _mean(asked, name) for name in METRICS}
    error = "" if asked else str(group[0].get("error", ""))
    return Line(*key, len(asked), means, error)


def grids(rows: Iterable[dict[str, Any]], metric: str = "score") -> list[Grid]:
    """A grid for each subject, task and haystack."""
    groups: dict[tuple[str, str, str, str], dict[tuple[float | None, int], list[float]]] = {}
    for row in rows:
        title = (row["method"], answer_name(row), task_name(row), row["haystack"])
        value = _mean(row.get("questions", ()), metric)
        cells = groups.setdefault(title, {})
        if value is not None:
            cells.setdefault((row["depth"], row["length"]), []).append(value)
    made = []
    for title, cells in groups.items():
        if not cells:
            continue
        method, answer, task, haystack = title
        depths = {depth for depth, _ in cells}
        made.append(
            Grid(
                f"{method} {answer}: {task} in {haystack}",
                tuple(sorted(depths, key=lambda depth: -1.0 if depth is None else depth)),
                tuple(sorted({length for _, length in cells})),
                {place: fmean(values) for place, values in cells.items()},
            )
        )
    return made


def _mean(asked: Iterable[dict[str, Any]], name: str) -> float | None:
    values = [question[name] for question in asked if question.get(name) is not None]
    return fmean(values) if values else None
