"""`hip summarize`: one summary that covers all of the input."""

from typing import Annotated

import typer

from hipcli.commands.resuming import Resume, resumed_or_read
from hipcli.config import options
from hipcli.config.numbers import whole
from hipcli.config.parameters import checked_choice, takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.exit_codes import ExitCode
from hipcli.runs.ranks import served
from hipcli.summary import wording
from hipcli.terminal.output import open_sink

PER = ("file", "chapter", "none")
MIN_WORDS = 10


@takes(*options.SECTIONS.values())
def summarize(
    context: typer.Context,
    sources: Annotated[list[str] | None, typer.Argument(metavar="SOURCE...")] = None,
    per: Annotated[
        str | None,
        typer.Option(
            "--per",
            metavar="|".join(PER),
            callback=checked_choice(PER),
            help="A summary of every file or chapter, or one alone (default: chapters of one "
            "document, files of several).",
        ),
    ] = None,
    words: Annotated[
        int,
        typer.Option(
            "--words", metavar="N", parser=whole(MIN_WORDS), help="About how long, in all."
        ),
    ] = wording.DEFAULT_WORDS,
    focus: Annotated[
        str, typer.Option("--focus", metavar="TEXT", help="What to pay attention to above all.")
    ] = "",
    resume: Resume = None,
) -> int:
    """Summarize documents of any length: every part is gone through, the last as the first.

    \b
    hip summarize book.txt
    hip summarize report.pdf --per chapter --words 800
    hip summarize src/ README.md --per file --focus "how errors are handled"
    hip summarize --resume --json | jq .coverage

    The documents are read once, into a session that hip ask can go on with. A summary that was
    interrupted goes on where it stopped.
    """
    from hipcli.summary.writing import SummarizeRun, Wanted

    settings = Settings.of(context)
    if served(settings):
        return ExitCode.OK
    if settings.values["cite"]:
        raise UsageError("--cite is for hip ask", "--json lists the passages behind every part")
    read, session = resumed_or_read(context.obj, settings, sources or [], resume)
    wanted = Wanted(read, session, per, words, focus.strip())  # type: ignore[arg-type]
    with open_sink(context.obj, settings.values["output"]) as sink:
        return SummarizeRun(context.obj, settings, wanted, sink).run()
