"""`hip chat`: one question after another about the same documents."""

from typing import Annotated

import typer

from hipcli.commands.resuming import Resume, check_before_reading
from hipcli.config import arguments, options
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.exit_codes import ExitCode
from hipcli.runs.ranks import served
from hipcli.terminal.console import Console
from hipcli.terminal.output import open_sink


@takes(*options.SECTIONS.values())
def chat(
    context: typer.Context,
    sources: Annotated[list[str] | None, typer.Argument(metavar="[SOURCE...]")] = None,
    resume: Resume = None,
) -> int:
    """Ask one question after another; without SOURCE, about the latest session.

    \b
    hip chat book.pdf
    hip chat --resume letters
    printf 'Who wrote it?\\nAnd when?\\n' | hip chat book.pdf

    Each question follows on from the ones before. /help lists the commands: /cite, /save NAME,
    /fork, /stats, /quit. Alt-Enter begins a new line, Ctrl-C ends an answer, Ctrl-D the chat.
    Piped in, a line is a question.
    """
    from hipcli.runs.chatting import ChatRun
    from hipcli.terminal.typing_in import lines

    settings = Settings.of(context)
    if served(settings):
        return ExitCode.OK
    values, words = settings.values, sources or []
    console: Console = context.obj
    if settings.output_format == "json":
        raise UsageError("hip chat has no end to print as --json", "--jsonl prints events")
    if arguments.STDIN in words or values["files_from"] == arguments.STDIN:
        raise UsageError("standard input is where the questions come from", "name a file instead")
    if console.stdin is None:
        raise UsageError("standard input is closed, so no question can come", "leave it open")
    if resume is None and not words and values["files_from"] is None:
        resume = ""
    check_before_reading(settings, resume)
    if resume is not None:
        arguments.refuse_sources(words, values["files_from"])
        read = None
    else:
        listed = values["files_from"], values["null"]
        read = arguments.read_sources(console, words, *listed, stdin_taken=True)
    typed = lines(console, None if values["no_cache"] else settings.cache_root)
    with open_sink(console, values["output"]) as sink:
        return ChatRun(console, settings, sink, read, resume or "", typed).run()
