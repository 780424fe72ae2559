"""`hip ask`: one question about documents, or about a saved session."""

from typing import Annotated

import typer

from hipcli.commands.batching import (
    BatchFile,
    BatchOptions,
    Cluster,
    Unordered,
    Workers,
    answer_batch,
)
from hipcli.commands.resuming import Resume, check_before_reading
from hipcli.config import arguments, options
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.exit_codes import ExitCode
from hipcli.runs.asking import AskRun
from hipcli.runs.ranks import served
from hipcli.terminal.console import Console
from hipcli.terminal.output import open_sink

QuestionFile = Annotated[
    str | None,
    typer.Option(
        "--question-file", "-Q", metavar="FILE", help="Read the question from FILE; - is stdin."
    ),
]
Converse = Annotated[
    bool,
    typer.Option(
        "--continue",
        help="Keep this question and its answer in the session: the next ones follow on.",
    ),
]


@takes(*options.SECTIONS.values(), options.EVIDENCE)
def ask(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar='SOURCE... "QUESTION"')] = None,
    question_file: QuestionFile = None,
    batch: BatchFile = None,
    unordered: Unordered = False,
    cluster: Cluster = None,
    workers: Workers = 0,
    resume: Resume = None,
    converse: Converse = False,
) -> int:
    """Ask a question about files, folders, or what is piped in.

    \b
    hip ask book.pdf "Who wrote the letter?"
    hip ask src/ README.md "Where is the retry policy set?" --cite
    hip ask --resume "Who received the letter?"
    git log | hip ask - "What changed in the parser?"
    hip ask paper.pdf -Q question.txt --json | jq .answer
    hip ask paper.pdf --batch questions.jsonl --jsonl
    hip ask --batch jobs.jsonl --cluster auto --jsonl

    The answer goes to stdout, everything else to stderr. A second question about the same
    documents starts from the saved session and reads nothing again.

    Every option is also an environment variable (HIP_MAX_NEW_TOKENS) and a key of a configuration
    file (max_new_tokens); a flag goes before a variable, a variable before a file.
    """
    settings = Settings.of(context)
    if served(settings):
        return ExitCode.OK
    console, given = context.obj, BatchOptions(batch, unordered, cluster, workers)
    check_before_reading(settings, resume)
    _refuse_together(settings, batch is not None, question_file, converse)
    given.refuse_alone()
    if batch is not None:
        return answer_batch(console, settings, words or [], resume, given)
    listed = settings.values["files_from"], settings.values["null"]
    asked = arguments.read_asked(console, words or [], resume, question_file, *listed)
    return _answer(console, settings, asked, converse)


def _refuse_together(
    settings: Settings, is_batch: bool, question_file: str | None, converse: bool
) -> None:
    """Options that exclude one another.

    Raises:
        UsageError: two of them are there.
    """
    if converse and (settings.values["no_cache"] or is_batch):
        other = "--batch" if is_batch else "--no-cache"
        raise UsageError(f"--continue and {other} exclude one another", "give one of them")
    target = settings.values["open_evidence"]
    if target is not None and (is_batch or str(target) == arguments.STDIN):
        raise UsageError("--open-evidence is a file for one answer", "give it a name, one question")
    if is_batch and question_file is not None:
        raise UsageError("--batch and -Q exclude one another", "give one of them")


def _answer(console: Console, settings: Settings, asked: arguments.Asked, converse: bool) -> int:
    """Answers one question, with a page of its evidence where one is wanted; the exit code."""
    target = settings.values["open_evidence"]
    with (
        open_sink(console, settings.values["output"]) as sink,
        open_sink(console, target, options.flag("open_evidence")) as page,
    ):
        shown = None if target is None else page
        return AskRun(console, settings, asked, sink, converse, shown).run()
