"""`hip ask --batch`: the options about a file of questions, and the run that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from hipcli.config import arguments, numbers
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.runs.batch import Batch, BatchRun
from hipcli.runs.checks import check_batch
from hipcli.runs.jobs import parse_jobs
from hipcli.terminal.console import Console
from hipcli.terminal.output import open_sink

BatchFile = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="FILE",
        help="Answer every question of a JSONL file, each on its own; - is stdin. A line may "
        'name its own sources: {"question": "Who?", "sources": ["book.pdf"]}.',
    ),
]
Unordered = Annotated[
    bool,
    typer.Option(
        "--unordered", help="With --batch: tell answers as they come, not in order of lines."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="auto|local|ADDRESS",
        help="With --batch: spread the documents over the workers of a Ray cluster: one that "
        "runs here already or else a new one (auto), a new one (local), or one elsewhere.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        parser=numbers.whole(0),
        show_default=False,
        metavar="N",
        help="With --cluster: how many (default: one a GPU, and without GPUs one for four "
        "processors).",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the command line says of a batch.

    Args:
        file: value of `--batch`, None without it.
        unordered: True for `--unordered`.
        cluster: value of `--cluster`, None without it.
        workers: value of `--workers`, 0 without it.
    """

    file: str | None
    unordered: bool
    cluster: str | None
    workers: int

    def refuse_alone(self) -> None:
        """Options that need another one which is not there.

        Raises:
            UsageError: what is missing.
        """
        if self.file is not None:
            if self.workers and self.cluster is None:
                what = "--workers is about --cluster, which is not there"
                raise UsageError(what, "add --cluster auto")
        elif self.cluster is not None or self.unordered or self.workers:
            several = "--unordered" if self.unordered else "--workers"
            flag = several if self.cluster is None else "--cluster"
            raise UsageError(f"{flag} is about --batch, which is not there", "add --batch FILE")


def answer_batch(
    console: Console,
    settings: Settings,
    words: Sequence[str],
    resume: str | None,
    given: BatchOptions,
) -> int:
    """Answers a file of questions; the exit code.

    Args:
        words: the positional arguments, all of them sources.
        resume: value of `--resume`: empty when it stands without one, None when it isn't there.
        given: with a file.
    """
    questions = _read(console, settings, words, resume, given)
    with open_sink(console, settings.values["output"]) as sink:
        if given.cluster is None:
            return BatchRun(console, settings, questions, sink).run()
        from hipcli.runs.cluster.running import ClusterRun, Where

        where = Where(given.cluster, given.workers)
        return ClusterRun(console, settings, questions, sink, where).run()


def _read(
    console: Console,
    settings: Settings,
    words: Sequence[str],
    resume: str | None,
    given: BatchOptions,
) -> Batch:
    """The questions, and what those are about that do not say so themselves."""
    assert given.file is not None
    listed = settings.values["files_from"], settings.values["null"]
    content = arguments.read_batch(console, words, resume, given.file, listed[0])
    name = "the questions on stdin" if given.file == arguments.STDIN else given.file
    jobs = parse_jobs(content, name)
    check_batch(settings, jobs, resume, given.cluster)
    sources = None
    if resume is None:
        needed = any(job.sources is None for job in jobs)
        sources = arguments.batch_sources(console, words, given.file, *listed, needed)
    return Batch(jobs, sources, resume, given.unordered)
