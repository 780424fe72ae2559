"""Which cells an evaluation has, and what names each of them in the file of results."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hipcli.engine.config import ANSWER_MODES
from hipcli.engine.errors import UsageError
from hipcli.engine.evaluation.haystacks import HAYSTACKS
from hipcli.engine.evaluation.tasks import TASKS
from hipcli.engine.methods import METHODS

# What answers without a search of the model's own: name -> what it does.
BASELINES = {
    "bm25": "passages found by their words (Okapi BM25), reread as hip rereads",
    "oracle": "the passages that hold the needles, reread: what the model makes of them",
}
# The name of the haystack made of the user's files.
FILES = "files"
# Raised when the texts or questions of a seed change: older results are of other cells then.
TEXTS_VERSION = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The grid of an evaluation.

    Args:
        tasks: names in TASKS.
        haystacks: names in HAYSTACKS, or "files".
        lengths: tokens of the whole prompt and its answer.
        depths: of needles, 0.0 to 1.0.
        methods: names of attention methods or baselines.
        answers: answer modes of the attention methods.
        samples: texts per cell of the grid, each from a seed of its own.
        seed: of everything.
        rounds: how often methods look for their evidence (`AskRequest.rounds`).
        keeps: parts of the context that methods answer from, 1 for all of it.
    """

    tasks: tuple[str, ...]
    haystacks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    methods: tuple[str, ...]
    answers: tuple[str, ...]
    samples: int = 1
    seed: int = 0
    rounds: int = 1
    keeps: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        _check("task", self.tasks, TASKS)
        _check("haystack", self.haystacks, (*HAYSTACKS, FILES))
        _check("method", self.methods, (*METHODS, *BASELINES))
        _check("answer mode", self.answers, ANSWER_MODES)
        if min(self.lengths) < 256:
            raise UsageError(
                f"--lengths: {min(self.lengths)} tokens hold no task", "give 256 or more"
            )
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise UsageError("--depths must lie between 0 and 1")

    def settings(self) -> list[tuple[str, str, float]]:
        """Methods with their answer modes (baselines reread, dense attention attends) and with
        the part of the context that is kept (baselines have all of it)."""
        found: list[tuple[str, str, float]] = []
        for method in self.methods:
            if method in BASELINES:
                found.append((method, "reread", 1.0))
                continue
            answers = ("attend",) if method == "dense" else self.answers
            found += [(method, answer, keep) for answer in answers for keep in self.keeps]
        return list(dict.fromkeys(found))

    def texts(self) -> Iterator["Text"]:
        """All texts, short ones first, so that a limit of time cuts off the long ones."""
        for length, sample, haystack in itertools.product(
            self.lengths, range(self.samples), self.haystacks
        ):
            for task in self.tasks:
                has_depth, own = TASKS[task].has_depth, TASKS[task].own_text
                # A task that brings its text is asked once, whatever the haystacks.
                if own and haystack != self.haystacks[0]:
                    continue
                for depth in self.depths if has_depth else (None,):
                    name = "own" if own else haystack
                    yield Text(task, name, length, depth, sample, self.seed)


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the grid; `depth` is None for tasks that spread their needles."""

    task: str
    haystack: str
    length: int
    depth: float | None
    sample: int
    seed: int


@dataclass(frozen=True, slots=True)
class Subject:
    """Who answers: a model with a method, or a baseline.

    Args:
        model: id of the model, with what tells its weights and their numbers from others.
        method: name of the method or baseline.
        settings: of the method.
        answer: answer mode asked for.
        kv_dtype: of keys and values, as it was asked for.
        keep: part of the context that is kept.
        rounds: how often evidence is looked for.
        heads: digest of the calibration that the votes follow; "" where all heads vote alike.
        looks: how many of the best pages are looked at again (`EngineConfig.looks`).
    """

    model: str
    kv_dtype: str
    method: str
    settings: dict[str, Any]
    answer: str
    keep: float = 1.0
    rounds: int = 1
    heads: str = ""
    looks: int = 0


def cell_key(
    text: Text, subject: Subject, haystack_digest: str, version: int = TEXTS_VERSION
) -> str:
    """Names a cell; equal keys mean the same question to the same subject."""
    digest = {"haystack_digest": haystack_digest, "texts_version": version}
    record = {**asdict(text), **asdict(subject), **digest}
    return json.dumps(record, sort_keys=True)


def key_of_row(row: dict[str, Any]) -> str:
    """The key of the cell that a row of the results belongs to; "" for a row of another kind."""
    try:
        text = Text(**{name: row[name] for name in Text.__slots__})
        # Results from before contexts could be pruned, evidence looked for again, heads calibrated,
        # pages looked at again.
        whole = {"keep": 1.0, "rounds": 1, "heads": "", "looks": 0, **row}
        subject = Subject(**{name: whole[name] for name in Subject.__slots__})
        return cell_key(text, subject, row["haystack_digest"], row["texts_version"])
    except (KeyError, TypeError):
        return ""


def _check(what: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} '{name}'", f"there are: {', '.join(known)}")
