"""From a model to the weights of its heads."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from random import Random

import torch

from hipcli.engine.calibration.collecting import collect
from hipcli.engine.calibration.fitting import Question, fit, fit_look, recall_1, recall_1_looked
from hipcli.engine.calibration.texts import Lesson, lesson
from hipcli.engine.device import memory_errors
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.evaluation.composing import Prompts, compose
from hipcli.engine.evaluation.haystacks import HAYSTACKS
from hipcli.engine.evaluation.placing import Case, Haystack
from hipcli.engine.events import Event
from hipcli.engine.models.digest_cache import weights_digest
from hipcli.engine.models.heads import HeadWeights, LookRows, Rows

TEXTS = ("prose", "code")
# Raised when a seed comes to mean other texts.
TEXTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Which texts are read.

    Args:
        lengths: tokens of each text with a question.
        samples: texts of each length in prose, and in code.
        seed: of the texts.
    """

    lengths: tuple[int, ...]
    samples: int
    seed: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"--samples: {self.samples} texts teach nothing", "give 1 or more")

    @property
    def num_texts(self) -> int:
        """How many texts there are."""
        return len(self.lengths) * self.samples * len(TEXTS)

    def texts(self, prompts: Prompts) -> Iterator[tuple[Case, Lesson]]:
        """The texts, each with what it teaches.

        Raises:
            DoesNotFitError: a length is too short.
        """
        for length in self.lengths:
            for sample in range(self.samples):
                for name in TEXTS:
                    # No evaluation's seed begins with a word.
                    rng = Random(f"calibration {self.seed} {name} {length} {sample}")
                    taught, kind = lesson(rng), HAYSTACKS[name]
                    haystack = Haystack(kind.units(rng), prompts.tokenizer, kind.wrap)
                    yield compose(taught.draft, haystack, prompts, length), taught


def calibrate(
    engine: Engine,
    prompts: Prompts,
    plan: CalibrationPlan,
    on_event: Callable[[Event], None] = lambda event: None,
    on_text: Callable[[int, int], None] = lambda number, total: None,
) -> HeadWeights:
    """Find out which heads of a model retrieve. The same plan gives the same weights.

    Args:
        engine: the model; a calibration that it has already plays no part.
        prompts: the product's prompt.
        plan: which texts.
        on_event: told what the engine says meanwhile.
        on_text: told which text comes next, from 0, and how many there are.

    Raises:
        DoesNotFitError: a text does not fit its length, or the device.
        ModelError: the model cannot be loaded.
    """
    loaded = engine.loaded
    questions: list[Question] = []
    longest = 0
    with memory_errors(lambda: loaded.short_of_memory(longest, None)):
        for number, (case, taught) in enumerate(plan.texts(prompts)):
            longest = 2 * len(case.placed.ids)
            on_text(number, plan.num_texts)
            chunk_tokens = loaded.chunk_tokens(engine.config, longest)
            collecting = collect(loaded, prompts, case, taught.held_out, chunk_tokens)
            questions += _drained(collecting, on_event)
    taught_by = [question for question in questions if not question.held_out]
    measured_with = [question for question in questions if question.held_out]
    weights = fit(taught_by)
    layers, heads = loaded.runner.layout.num_layers, loaded.runner.num_heads
    # What is measured is what is stored: rounded.
    rows = _rounded(weights.view(layers, heads))
    stored = torch.tensor(rows).flatten()
    look = fit_look(taught_by, stored)
    assert look.attention is not None, "it was fitted"
    words, last = (_rounded(part) for part in look.attention)
    return HeadWeights(
        weights_digest(engine.folder.path, engine.config.models_dir),
        rows,
        {
            **asdict(plan),
            "lengths": list(plan.lengths),
            "texts": list(TEXTS),
            "texts_version": TEXTS_VERSION,
            "method": engine.config.method,
            "dtype": loaded.dtype,
        },
        {
            "questions": len(taught_by),
            "held_out": len(measured_with),
            "recall_1_before": recall_1(measured_with, torch.ones_like(stored)),
            "recall_1_after": recall_1(measured_with, stored),
            "recall_1_looked": recall_1_looked(measured_with, stored, look),
        },
        LookRows(round(look.likelihood, 6), words, last),
    )


def _rounded(rows: torch.Tensor) -> Rows:
    return tuple(tuple(round(weight, 6) for weight in row) for row in rows.tolist())


def _drained(
    events: Generator[Event, None, list[Question]], on_event: Callable[[Event], None]
) -> list[Question]:
    """What a generator returns, its events told."""
    while True:
        try:
            on_event(next(events))
        except StopIteration as stop:
            found: list[Question] = stop.value
            return found
