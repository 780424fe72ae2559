"""`hip eval`: how good answers are, on generated tasks, and how near methods come to dense."""

import typer

from hipcli.config.eval_options import EVAL
from hipcli.config.option import changed
from hipcli.config.options import (
    ANSWER,
    CACHE,
    JSON,
    JSONL,
    MACHINE,
    METHOD,
    MODEL,
    MODELS_DIR,
    PROGRESS,
    SESSION,
    TALK,
)
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.runs.opening import open_engine
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.output import SCHEMA_VERSION, StdoutSink, columns

_METHOD = (
    changed(METHOD, "method", help="Methods, or the baselines bm25 and oracle.", metavar="NAMES"),
    *METHOD[1:],
)
_ANSWER = (
    changed(
        ANSWER,
        "answer",
        help="Answer modes of the methods: auto, attend, share, reread.",
        choices=(),
        metavar="NAMES",
    ),
    changed(ANSWER, "rounds"),
    changed(ANSWER, "seed", help="Seed of all texts."),
)
_KEEP = (
    changed(
        SESSION,
        "keep",
        default="full",
        help="Parts of the context to answer from besides all of it, as in 0.5,0.25,0.1.",
        metavar="RATIOS",
    ),
)
# Every length is asked for, so nothing is cut.
_MACHINE = tuple(option for option in MACHINE if option.name not in ("context_limit", "fit"))


@takes(
    EVAL, MODEL, MODELS_DIR, _MACHINE, _METHOD, _ANSWER, _KEEP, CACHE, JSON, JSONL, PROGRESS, TALK
)  # fmt: skip
def evaluate(context: typer.Context) -> int:
    """Measure answers and evidence on generated tasks, at any length and depth.

    \b
    hip eval --tasks passkey,single --lengths 4k,8k --depths 0.1,0.5,0.9
    hip eval --tasks all --lengths 32k --method hip,bm25 --out results.jsonl
    hip eval --haystack-files src/ --tasks alike_8 --lengths 16k --html map.html
    hip eval --fidelity book.txt --method hip,window
    hip eval --list

    Tasks are generated from a seed in tokens of the model at hand, in the manner of public suites
    (RULER-style; the scores are not theirs). An interrupted run goes on where it stopped when
    --out names the same file. SCORE is the part of the expected words in the answer; RECALL_1 and
    RECALL_24 the part of the needles on the best page and the best 24 pages of 64 tokens; ALL_24
    how often those hold all needles; READ_TOKENS what passed through the model.
    """
    from hipcli.runs.evaluating import EvalRun, listed

    settings = Settings.of(context)
    if settings.values["list"]:
        _list(context.obj, settings, listed())
        return 0
    return EvalRun(context.obj, settings, StdoutSink(context.obj), open_engine).run()


def _list(console: Console, settings: Settings, kinds: dict[str, dict[str, str]]) -> None:
    """Shows names by kind, each with a line about it."""
    sink = StdoutSink(console)
    if settings.output_format != "text":
        sink.write_json({"schema_version": SCHEMA_VERSION, **kinds})
        return
    rows = [
        (kind, name, summary) for kind, names in kinds.items() for name, summary in names.items()
    ]
    width = columns(console, settings)
    sink.write(formatting.table(("KIND", "NAME", "WHAT IT IS"), rows, width=width, key=1))
