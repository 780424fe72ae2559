"""`hip ask`: one question about documents, or about a saved session."""

from collections.abc import Sequence
from typing import Annotated

import typer

from hipcli import arguments, options
from hipcli.asking import AskRun
from hipcli.batch import Batch, BatchRun, parse_questions
from hipcli.checks import check_settings
from hipcli.engine.errors import UsageError
from hipcli.output import open_sink
from hipcli.settings import Settings, takes


@takes(*options.SECTIONS.values())
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
            help="Answer every question of a JSONL file, each on its own; - is stdin.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            "-c",
            metavar="[ID]",
            help="Ask a saved session again (an id, its start, or a name; without it the latest).",
        ),
    ] = None,
) -> int:
    """Ask a question about files, folders, or what is piped in.

    \b
    hip ask book.pdf "Who wrote the letter?"
    hip ask src/ README.md "Where is the retry policy set?" --cite
    hip ask --resume "And who received it?"
    git log | hip ask - "What changed in the parser?"
    hip ask paper.pdf -Q question.txt --json | jq .answer
    hip ask paper.pdf --batch questions.jsonl --jsonl

    The answer goes to stdout, everything else to stderr. A second question about the same
    documents starts from the saved session and reads nothing again.

    Every option is also an environment variable (HIP_MAX_NEW_TOKENS) and a key of a configuration
    file (max_new_tokens); a flag goes before a variable, a variable before a file.
    """
    settings = Settings.of(context)
    values = settings.values
    if resume is None:
        check_settings(settings)
    elif values["no_cache"]:
        raise UsageError("--resume and --no-cache exclude one another", "give one of them")
    console, listed = context.obj, (values["files_from"], values["null"])
    if batch is not None:
        if question_file is not None:
            raise UsageError("--batch and -Q exclude one another", "give one of them")
        content, sources = arguments.read_batch(console, words or [], resume, batch, *listed)
        name = "the questions on stdin" if batch == arguments.STDIN else batch
        questions = Batch(parse_questions(content, name), sources, resume)
        with open_sink(console, values["output"]) as sink:
            return BatchRun(console, settings, questions, sink).run()
    asked = arguments.read_asked(console, words or [], resume, question_file, *listed)
    with open_sink(console, values["output"]) as sink:
        return AskRun(console, settings, asked, sink).run()


def with_resume_value(words: Sequence[str]) -> list[str]:
    """`hip ask --resume` and `-c` may stand without a value, which Typer's options can't.

    Returns:
        The words, an empty value added to a `--resume` that is followed by an option or nothing.
    """
    words = list(words)
    if words[:1] != ["ask"]:
        return words
    end = words.index("--") if "--" in words else len(words)
    for position in range(1, end):
        is_resume = words[position] in ("--resume", "-c")
        following = words[position + 1] if position + 1 < len(words) else "-"
        if is_resume and following.startswith("-"):
            words[position] = "--resume="
    return words
