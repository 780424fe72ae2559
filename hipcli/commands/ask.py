"""`hip ask`: one question about documents, or about a saved session."""

from typing import Annotated

import typer

from hipcli.commands.resuming import Resume, check_before_reading
from hipcli.config import arguments, numbers, options
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.exit_codes import ExitCode
from hipcli.runs.asking import AskRun
from hipcli.runs.batch import Batch, BatchRun
from hipcli.runs.checks import check_batch
from hipcli.runs.jobs import parse_jobs
from hipcli.runs.ranks import served
from hipcli.terminal.output import open_sink


@takes(*options.SECTIONS.values(), options.EVIDENCE)
def ask(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar='SOURCE... "QUESTION"')] = None,
    question_file: Annotated[
        str | None,
        typer.Option(
            "--question-file", "-Q", metavar="FILE", help="Read the question from FILE; - is stdin."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="FILE",
            help="Answer every question of a JSONL file, each on its own; - is stdin. A line may "
            'name its own sources: {"question": "Who?", "sources": ["book.pdf"]}.',
        ),
    ] = None,
    unordered: Annotated[
        bool,
        typer.Option(
            "--unordered", help="With --batch: tell answers as they come, not in order of lines."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="auto|local|ADDRESS",
            help="With --batch: spread the documents over the workers of a Ray cluster: one that "
            "runs here already or else a new one (auto), a new one (local), or one elsewhere.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            parser=numbers.whole(0),
            show_default=False,
            metavar="N",
            help="With --cluster: how many (default: one a GPU, and without GPUs one for four "
            "processors).",
        ),
    ] = 0,
    resume: Resume = None,
    converse: Annotated[
        bool,
        typer.Option(
            "--continue",
            help="Keep this question and its answer in the session: the next ones follow on.",
        ),
    ] = False,
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
    values = settings.values
    if served(settings):
        return ExitCode.OK
    check_before_reading(settings, resume)
    if converse and (values["no_cache"] or batch is not None):
        other = "--batch" if batch is not None else "--no-cache"
        raise UsageError(f"--continue and {other} exclude one another", "give one of them")
    target = values["open_evidence"]
    if target is not None and (batch is not None or str(target) == "-"):
        raise UsageError("--open-evidence is a file for one answer", "give it a name, one question")
    console, listed = context.obj, (values["files_from"], values["null"])
    if batch is not None:
        if workers and cluster is None:
            what = "--workers is about --cluster, which is not there"
            raise UsageError(what, "add --cluster auto")
        if question_file is not None:
            raise UsageError("--batch and -Q exclude one another", "give one of them")
        content = arguments.read_batch(console, words or [], resume, batch, listed[0])
        name = "the questions on stdin" if batch == arguments.STDIN else batch
        jobs = parse_jobs(content, name)
        check_batch(settings, jobs, resume, cluster)
        needed = resume is None and any(job.sources is None for job in jobs)
        sources = None
        if resume is None:
            sources = arguments.batch_sources(console, words or [], batch, *listed, needed)
        questions = Batch(jobs, sources, resume, unordered)
        with open_sink(console, values["output"]) as sink:
            if cluster is not None:
                from hipcli.runs.cluster.running import ClusterRun, Where

                where = Where(cluster, workers)
                return ClusterRun(console, settings, questions, sink, where).run()
            return BatchRun(console, settings, questions, sink).run()
    if cluster is not None or unordered or workers:
        flag = "--cluster" if cluster is not None else "--unordered" if unordered else "--workers"
        raise UsageError(f"{flag} is about --batch, which is not there", "add --batch FILE")
    asked = arguments.read_asked(console, words or [], resume, question_file, *listed)
    with (
        open_sink(console, values["output"]) as sink,
        open_sink(console, target, options.flag("open_evidence")) as page,
    ):
        shown = None if target is None else page
        return AskRun(console, settings, asked, sink, converse, shown).run()
