"""Walks the grid: makes a text, lets every subject answer about it, and grades what comes back.

A text is read once for each method, whatever is asked about it: questions, wordings and answer
modes share the reading, which is exact (`Engine.ask_each`). Nothing is saved on disk.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

import numpy as np

from hipcli.engine.answering.passages import SEPARATOR, reread_budget_tokens, reread_prompt
from hipcli.engine.config import CacheConfig, GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.errors import DoesNotFitError, UsageError
from hipcli.engine.evaluation import grading
from hipcli.engine.evaluation.bm25 import WordIndex
from hipcli.engine.evaluation.case import Probe
from hipcli.engine.evaluation.composing import Prompts, compose
from hipcli.engine.evaluation.haystacks import HAYSTACKS, HaystackKind
from hipcli.engine.evaluation.placing import Case, Haystack
from hipcli.engine.evaluation.plan import (
    BASELINES,
    FILES,
    TEXTS_VERSION,
    Plan,
    Subject,
    Text,
    cell_key,
    key_of_row,
)
from hipcli.engine.evaluation.rows import RANKS, Answer, Row, rows_of
from hipcli.engine.evaluation.tasks import TASKS
from hipcli.engine.events import Event, Result
from hipcli.engine.methods import accepted, make_config
from hipcli.engine.methods.configs import PAGE_TOKENS
from hipcli.engine.models.digest_cache import weights_digest
from hipcli.engine.request import AskRequest

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that need not be made again, and the keys of their cells."""

    rows: list[Row]
    keys: set[str]


@dataclass(slots=True)
class Evaluation:
    """One evaluation of one model.

    Args:
        engine: the model; methods are put in its place one by one.
        prompts: the product's prompt.
        plan: the grid.
        method_settings: fields of methods' configs that differ from the defaults; a method that
            lacks a field goes without.
        files: the haystack of the user's files, if they named any.
        limit_s: no cell begins later than this.
        on_event: told what the engine says meanwhile.
        on_text: told which text comes next, and how many there are.
    """

    engine: Engine
    prompts: Prompts
    plan: Plan
    method_settings: dict[str, int] = field(default_factory=dict)
    files: HaystackKind | None = None
    limit_s: float = float("inf")
    on_event: Callable[[Event], None] = lambda event: None
    on_text: Callable[[Text, int, int], None] = lambda text, number, total: None
    out_of_time: bool = False
    _haystacks: dict[tuple[str, int], Haystack] = field(default_factory=dict)
    _engines: dict[str, Engine] = field(default_factory=dict)
    _named: str = ""

    def rows(self, done: set[str]) -> Iterator[list[Row]]:
        """Rows of finished cells, those of one cell at a time.

        Args:
            done: keys of cells that need no answer any more (see `kept`).
        """
        began = time.perf_counter()
        texts = list(self.plan.texts())
        for number, text in enumerate(texts):
            waiting = [
                subject for subject in self._subjects(text) if self.key(text, subject) not in done
            ]
            if not waiting:
                continue
            self.on_text(text, number, len(texts))
            case: Case | None = None
            for method in dict.fromkeys(subject.method for subject in waiting):
                if time.perf_counter() - began > self.limit_s:
                    self.out_of_time = True
                    return
                subjects = [subject for subject in waiting if subject.method == method]
                try:
                    case = case or self.case(text)
                except DoesNotFitError as error:
                    yield from ([self._unfit(text, subject, error)] for subject in subjects)
                    continue
                yield from self._ask(text, case, subjects)

    def kept(self, rows: list[Row]) -> "Kept":
        """Which rows of an earlier run belong to this one's grid."""
        wanted = {
            self.key(text, subject)
            for text in self.plan.texts()
            for subject in self._subjects(text)
        }
        cells: dict[str, dict[str, Row]] = {}
        for row in rows:
            # Two runs that wrote into one file may have asked the same: the later one counts.
            if (key := key_of_row(row)) in wanted:
                cells.setdefault(key, {})[str(row.get("wording", ""))] = row
        # Of a cell whose writing was cut short some wordings are there; it is asked again.
        whole = {
            key: list(found.values())
            for key, found in cells.items()
            if all(len(found) >= row.get("wordings", 1) for row in found.values())
        }
        return Kept([row for found in whole.values() for row in found], set(whole))

    def key(self, text: Text, subject: Subject) -> str:
        """Name of a cell in the results."""
        return cell_key(text, subject, self._digest(text))

    def case(self, text: Text) -> Case:
        """The text of a cell with its needles and questions."""
        task = TASKS[text.task]
        rng = Random(f"{text.seed} {text.task} {text.length} {text.depth} {text.sample}")
        draft = task.make(rng, 0.0 if text.depth is None else text.depth)
        return compose(draft, self._haystack(text), self.prompts, text.length)

    def _digest(self, text: Text) -> str:
        return self.files.summary if self.files is not None and text.haystack == FILES else ""

    def _haystack(self, text: Text) -> Haystack:
        name = self.plan.haystacks[0] if TASKS[text.task].own_text else text.haystack
        key = (name, text.sample)
        if key not in self._haystacks:
            if len(self._haystacks) > len(self.plan.haystacks):
                self._haystacks.pop(next(iter(self._haystacks)))
            kind = self._kind(name)
            source = kind.units(Random(f"{text.seed} {name} {text.sample}"))
            self._haystacks[key] = Haystack(source, self.prompts.tokenizer, kind.wrap)
        return self._haystacks[key]

    def _kind(self, name: str) -> HaystackKind:
        if name != FILES:
            return HAYSTACKS[name]
        if self.files is None:
            raise UsageError("the haystack 'files' needs --haystack-files")
        return self.files

    def _subjects(self, text: Text) -> list[Subject]:
        model, kv_dtype = self._model(), self.engine.config.kv_dtype
        heads = self.engine.heads.digest if self.engine.heads else ""
        return [
            Subject(
                model,
                kv_dtype,
                method,
                self._settings(method),
                answer,
                keep,
                1 if method in BASELINES else self.plan.rounds,
                "" if method in BASELINES else heads,
                0 if method in BASELINES else self.engine.config.looks,
            )
            for method, answer, keep in self.plan.settings()
            if method != "oracle" or TASKS[text.task].has_needles
        ]

    def _model(self) -> str:
        """Names the model: two of them with the same name are those that give the same answers."""
        if not self._named:
            folder, config = self.engine.folder, self.engine.config
            parts = [folder.name]
            if folder.path.parent != config.models_dir:
                # What is not among hip's own models changes: a folder is trained further.
                parts.append(f"@{weights_digest(folder.path, config.models_dir)[:8]}")
            given = [said for said in (config.dtype, config.weights) if said != "auto"]
            self._named = "".join(parts) + (f" ({', '.join(given)})" if given else "")
        return self._named

    def _settings(self, method: str) -> dict[str, Any]:
        """All settings of a method, as results name them."""
        if method in BASELINES:
            return {"passage_tokens": reread_budget_tokens(self.engine.trained_tokens)}
        return asdict(make_config(method, accepted(method, self.method_settings)))

    def _engine(self, method: str) -> Engine:
        # What a baseline gives the model is short: dense attention reads it.
        name = "dense" if method in BASELINES else method
        if name not in self._engines:
            self._engines[name] = self.engine.with_method(
                name, accepted(name, self.method_settings)
            )
        return self._engines[name]

    def _ask(self, text: Text, case: Case, subjects: list[Subject]) -> Iterator[list[Row]]:
        """Rows of the cells that one method shares a text for."""
        method = subjects[0].method
        try:
            if method in BASELINES:
                answers = self._baseline_answers(case, method)
            else:
                answers = self._method_answers(case, method, subjects)
        except DoesNotFitError as error:
            yield from ([self._unfit(text, subject, error)] for subject in subjects)
            return
        for subject in subjects:
            head = self._head(text, subject)
            yield rows_of(head, case, answers[: len(case.probes)])
            del answers[: len(case.probes)]

    def _method_answers(self, case: Case, method: str, subjects: list[Subject]) -> list[Answer]:
        """An answer for each probe by the first subject, then by the second..."""
        placed = case.placed
        requests = [
            self._request(
                placed.ids,
                placed.prefix_tokens,
                probe,
                subject.answer,
                CacheConfig(None, keep=subject.keep),
                subject.rounds,
            )
            for subject in subjects
            for probe in case.probes
        ]
        results = self._run(self._engine(method), requests)
        prefill_s = results[0].timings["prefill_s"]
        return [
            Answer(
                result,
                [passage.start_token // PAGE_TOKENS for passage in result.evidence],
                len(placed.ids) + result.question_tokens + result.reread_tokens,
                prefill_s,
            )
            for result in results
        ]

    def _run(self, engine: Engine, requests: list[AskRequest]) -> list[Result]:
        results = []
        for event in engine.ask_each(requests):
            self.on_event(event)
            if isinstance(event, Result):
                results.append(event)
        return results

    def _request(
        self,
        ids: np.ndarray,
        prefix: int,
        probe: Probe,
        answer: str,
        cache: CacheConfig,
        rounds: int = 1,
    ) -> AskRequest:
        question, span = self.prompts.question(probe.question)
        return AskRequest(
            context_ids=ids,
            question_ids=question,
            prefix_tokens=prefix,
            question_span=span,
            answer=answer,
            evidence_count=max(RANKS),
            generation=GenerationConfig(max_new_tokens=probe.max_new_tokens),
            cache=cache,
            rounds=rounds,
        )

    def _baseline_answers(self, case: Case, baseline: str) -> list[Answer]:
        """What the model says to the passages that a baseline finds for each probe."""
        began = time.perf_counter()
        placed, answers = case.placed, []
        index = WordIndex.of(case.text, placed) if baseline == "bm25" else None
        separator = self.engine.tokenizer.encode(SEPARATOR).ids.tolist()
        for probe in case.probes:
            if index is not None:
                ranking = index.ranking(probe.question, placed.prefix_tokens)
            else:
                ranking = sorted(frozenset().union(*grading.asked_pages(case, probe)))
            ids = reread_prompt(
                placed.ids,
                placed.prefix_tokens,
                ranking,
                separator,
                budget_tokens=reread_budget_tokens(self.engine.trained_tokens),
            )
            found_s = time.perf_counter() - began
            request = self._request(ids, placed.prefix_tokens, probe, "attend", CacheConfig(None))
            (result,) = self._run(self._engine(baseline), [request])
            read_tokens = len(ids) + result.question_tokens
            prefill_s = found_s + result.timings["prefill_s"]
            answers.append(Answer(result, ranking, read_tokens, prefill_s))
            began = time.perf_counter()
        return answers

    def _unfit(self, text: Text, subject: Subject, error: DoesNotFitError) -> Row:
        return {**self._head(text, subject), "wording": "", "error": error.message}

    def _head(self, text: Text, subject: Subject) -> Row:
        machine = self._engine(subject.method).description["model"]
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(text),
            **asdict(subject),
            "haystack_digest": self._digest(text),
            "texts_version": TEXTS_VERSION,
            "dtype": machine["dtype"],
            "device": machine["device"],
        }
