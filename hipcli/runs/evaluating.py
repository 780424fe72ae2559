"""One run of `hip eval`: plan, ask, keep results, show tables.

No error is caught here for good; `app.py` turns what escapes into an exit code.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli.config.settings import Settings
from hipcli.config.words import parse_keep, parse_size
from hipcli.engine.errors import DoesNotFitError, HipError, UsageError
from hipcli.engine.evaluation import summary
from hipcli.engine.evaluation.haystacks import HAYSTACKS, HaystackKind, files_kind
from hipcli.engine.evaluation.plan import BASELINES, FILES, Plan, Text
from hipcli.engine.evaluation.tasks import TASKS
from hipcli.engine.events import Event, Notice, Phase, Progress
from hipcli.engine.methods import METHODS, accepted
from hipcli.exit_codes import ExitCode
from hipcli.terminal import formatting, heat_map, heat_picture
from hipcli.terminal.console import Console
from hipcli.terminal.output import SCHEMA_VERSION, StdoutSink, check_file, open_file, open_sink
from hipcli.terminal.progress import ProgressView
from hipcli.version import __version__

if TYPE_CHECKING:
    from hipcli.engine.engine import Engine
    from hipcli.engine.evaluation.running import Evaluation

# What --fidelity compares when no length is asked for: the whole trained window.
_NO_LIMIT = 1 << 40


class EvalRun:
    """One evaluation.

    Args:
        console: for notices and the heat map of a terminal.
        settings: the parsed options.
        sink: where tables or JSON go.
        open_engine: as in `opening.py`.
    """

    def __init__(
        self,
        console: Console,
        settings: Settings,
        sink: StdoutSink,
        open_engine: Callable[..., "Engine"],
    ) -> None:
        self._console = console
        self._settings = settings
        self._sink = sink
        self._open_engine = open_engine
        self._rows: list[dict[str, Any]] = []

    def run(self) -> int:
        """Evaluates, and returns the exit code."""
        console, values = self._console, self._settings.values
        plan = self._plan()
        for name in ("html", "png"):
            check_file(values[name], f"--{name}")
        if values["png"] is not None:
            heat_picture.check_library()
        mixed = self._settings.output_format == "jsonl" and console.stdout_is_terminal
        shown = self._settings.shows_progress and not mixed
        with ProgressView(console, shown) as view, console.libraries_kept_quiet():
            self._event("start", schema_version=SCHEMA_VERSION, command="eval", version=__version__)
            files = self._files(view) if FILES in plan.haystacks else None
            text = self._text(values["fidelity"], view) if values["fidelity"] else ""
            config = self._settings.engine_config(method="hip", method_settings={})
            engine = self._open_engine(console, config, view)
            if text:
                return self._compare(engine, text, view)
            return self._ask(engine, plan, files, view)

    def _plan(self) -> Plan:
        """The grid that the options describe."""
        values = self._settings.values
        tasks = tuple(TASKS) if values["tasks"] == "all" else _words(values["tasks"], "tasks")
        default = FILES if values["haystack_files"] else "prose"
        return Plan(
            tasks=tasks,
            haystacks=_words(values["haystacks"] or default, "haystacks"),
            lengths=parse_lengths(values["lengths"]),
            depths=tuple(map(_depth, _words(values["depths"], "depths"))),
            methods=_words(values["method"], "method"),
            answers=_words(values["answer"], "answer"),
            samples=values["samples"],
            seed=values["seed"],
            rounds=values["rounds"],
            # The price of leaving pages out is the distance from what all of them give.
            keeps=tuple(dict.fromkeys((1.0, *map(_ratio, _words(values["keep"], "keep"))))),
        )

    def _files(self, view: ProgressView) -> HaystackKind:
        paths = self._settings.values["haystack_files"]
        if not paths:
            raise UsageError("the haystack 'files' needs --haystack-files")
        return files_kind("\n".join(self._read(list(paths), view)))

    def _text(self, path: Path, view: ProgressView) -> str:
        return "\n".join(self._read([str(path)], view))

    def _read(self, sources: list[str], view: ProgressView) -> list[str]:
        from hipcli.documents import ReadOptions, read_sources

        corpus = read_sources(sources, ReadOptions(), view.reading)
        for warning in corpus.warnings:
            self._console.warn(warning.message)
        return [document.text for document in corpus.documents]

    def _ask(
        self, engine: "Engine", plan: Plan, files: HaystackKind | None, view: ProgressView
    ) -> int:
        from hipcli.engine.evaluation.results import append_rows, read_rows

        out: Path | None = self._settings.values["out"]
        if out is not None:
            # A file that refuses results should say so before the first one is computed.
            append_rows(out, ())
        evaluation = self._evaluation(engine, plan, files, view)
        kept = evaluation.kept(read_rows(out) if out is not None else [])
        self._rows += kept.rows
        try:
            for rows in evaluation.rows(kept.keys):
                if out is not None:
                    append_rows(out, rows)
                self._rows += rows
                for row in rows:
                    self._event("cell", **row)
        except KeyboardInterrupt:
            # What is finished is shown all the same; the exit code tells of the interruption.
            view.stop()
            with suppress(HipError, OSError):
                self._show(engine)
            raise
        view.stop()
        if self._rows and all("error" in row for row in self._rows):
            raise DoesNotFitError(self._rows[0]["error"], "give shorter --lengths")
        if evaluation.out_of_time:
            limit = self._settings.values["limit_s"]
            self._console.warn(f"out of time: no cell was begun after {limit:g} s")
        self._show(engine)
        return ExitCode.OK

    def _evaluation(
        self, engine: "Engine", plan: Plan, files: HaystackKind | None, view: ProgressView
    ) -> "Evaluation":
        from hipcli.engine.evaluation.running import Evaluation
        from hipcli.prompts.whole_text import TextPrompts

        def told(event: Event) -> None:
            if isinstance(event, Progress):
                view.advance(event)
            elif isinstance(event, Phase):
                view.phase(event.name)
            elif isinstance(event, Notice):
                self._console.warn(event.message)

        def next_text(text: Text, number: int, total: int) -> None:
            where = f"{text.task} in {text.haystack} of {formatting.count(text.length)} tokens"
            view.phase(f"text {number + 1} of {total}", where)

        limit = self._settings.values["limit_s"]
        return Evaluation(
            engine,
            TextPrompts(engine.tokenizer),
            plan,
            method_settings=self._settings.method_settings(),
            files=files,
            limit_s=float("inf") if limit is None else limit,
            on_event=told,
            on_text=next_text,
        )

    def _show(self, engine: "Engine") -> None:
        lines, grids = summary.lines(self._rows), summary.grids(self._rows)
        model = engine.description["model"]
        path: Path | None = self._settings.values["html"]
        if path is not None:
            with open_sink(self._console, path, "--html") as sink:
                sink.write(heat_map.page(model, lines, grids))
        picture: Path | None = self._settings.values["png"]
        if picture is not None:
            with open_file(picture, "--png") as file:
                file.write_bytes(heat_picture.png(model, grids))
        if self._settings.output_format != "text":
            cells = [{name: getattr(line, name) for name in line.__slots__} for line in lines]
            self._finish({"model": model, "lines": cells, "cells": self._rows})
            return
        if not lines:
            return
        self._sink.write(heat_map.table(lines))
        on_terminal = self._console.stdout_is_terminal and self._console.stderr_is_terminal
        if on_terminal:
            heat_map.draw(self._console, grids)
        else:
            self._sink.write(heat_map.plain(grids))

    def _compare(self, engine: "Engine", text: str, view: ProgressView) -> int:
        from hipcli.engine.evaluation.fidelity import measure_text

        values = self._settings.values
        methods = [name for name in _words(values["method"], "method") if name in METHODS]
        if not methods:
            raise UsageError("--fidelity compares methods, and none is named", "see hip methods")
        given = self._settings.method_settings()
        settings = {name: accepted(name, given) for name in methods}
        asked = "lengths" in values and self._settings.sources["lengths"] != "default"
        most = parse_lengths(values["lengths"])[-1] if asked else _NO_LIMIT
        reports: list[dict[str, Any]] = []
        view.phase("load")
        for done, latest in measure_text(engine, text, methods, settings, most):
            view.phase(f"compared {formatting.count(done)} tokens")
            reports = latest
        view.stop()
        if self._settings.output_format == "text":
            self._sink.write(heat_map.fidelity_table(reports))
        else:
            self._finish({"model": engine.description["model"], "fidelity": reports})
        return ExitCode.OK

    def _finish(self, fields: dict[str, Any]) -> None:
        document = {"schema_version": SCHEMA_VERSION, **fields}
        if self._settings.output_format == "json":
            self._sink.write_json(document)
        else:
            # The cells went out one by one.
            self._event("result", **{k: v for k, v in document.items() if k != "cells"})

    def _event(self, name: str, **fields: Any) -> None:
        if self._settings.output_format == "jsonl":
            self._sink.write_json({"event": name, **fields})


def listed() -> dict[str, dict[str, str]]:
    """What `--list` shows: tasks, haystacks and baselines with a line about each."""
    haystacks = {name: kind.summary for name, kind in HAYSTACKS.items()}
    return {
        "task": {name: task.summary for name, task in TASKS.items()},
        "haystack": haystacks | {FILES: "the lines of --haystack-files"},
        "baseline": dict(BASELINES),
    }


def _words(text: str, name: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise UsageError(f"--{name.replace('_', '-')} names nothing", "see hip eval --list")
    return words


def parse_lengths(text: str) -> tuple[int, ...]:
    """What `--lengths` says, ascending, in tokens.

    Raises:
        UsageError: a word of it is no length.
    """
    return tuple(sorted(map(_tokens, _words(text, "lengths"))))


def _tokens(word: str) -> int:
    """Tokens in a length such as 4096, 8k or 1m."""
    try:
        return parse_size(word, "--lengths")
    except UsageError as error:
        raise UsageError(
            f"--lengths: {word!r} is no length", "write it as 4096, 8k or 1m"
        ) from error


def _ratio(word: str) -> float:
    ratio = parse_keep(word)
    return 1.0 if ratio is None else ratio


def _depth(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise UsageError(f"--depths: {word!r} is no number", "write them as 0.1,0.5") from error
