"""What a subject answered, and the row of results that it makes."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hipcli.engine.evaluation import grading
from hipcli.engine.evaluation.case import Probe
from hipcli.engine.evaluation.placing import Case
from hipcli.engine.events import Result

# Pages of evidence that count: the best one, and as many as a shared selection begins with.
RANKS = (1, 24)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a subject answered.

    Args:
        result: of the engine.
        ranking: pages of the context, the best first.
        read_tokens: tokens that passed through the model for it.
        prefill_s: seconds of reading, shared or not.
    """

    result: Result
    ranking: list[int]
    read_tokens: int
    prefill_s: float


METRICS = (
    "score",
    *(f"recall_{count}" for count in RANKS),
    f"all_{RANKS[-1]}",
    "read_tokens",
    "prefill_s",
    "answer_s",
)


def graded(case: Case, probe: Probe, answer: Answer) -> Row:
    """A question with its answer and every metric."""
    wanted = grading.asked_pages(case, probe)
    timings = answer.result.timings
    recalls = {count: grading.recall(answer.ranking, wanted, count) for count in RANKS}
    last = recalls[RANKS[-1]]
    return {
        "question": probe.question,
        "expected": list(probe.answers),
        "answer": answer.result.answer,
        "mode": answer.result.mode,
        "score": grading.score(answer.result.answer, probe),
        **{f"recall_{count}": value for count, value in recalls.items()},
        f"all_{RANKS[-1]}": None if last is None else float(last == 1.0),
        "read_tokens": answer.read_tokens,
        "prefill_s": answer.prefill_s,
        "answer_s": timings["question_s"] + timings["decode_s"],
    }


def _mean(asked: list[Row], name: str) -> float | None:
    values = [row[name] for row in asked if row[name] is not None]
    return fmean(values) if values else None


def rows_of(head: Row, case: Case, answers: list[Answer]) -> list[Row]:
    """A row for each wording of a cell.

    Args:
        head: what all of them begin with: text, subject, machine.
        case: what was asked.
        answers: one for each probe of the case.
    """
    rows = []
    wordings = list(dict.fromkeys(probe.wording for probe in case.probes))
    for wording in wordings:
        asked = [
            graded(case, probe, answer)
            for probe, answer in zip(case.probes, answers, strict=True)
            if probe.wording == wording
        ]
        rows.append(
            {
                **head,
                "wording": wording,
                "wordings": len(wordings),
                "context_tokens": len(case.placed.ids),
                **{name: _mean(asked, name) for name in METRICS},
                "questions": asked,
            }
        )
    return rows
