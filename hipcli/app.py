"""The command line as a whole: its commands, and the one place where errors become exit codes.

`run` knows exit codes and catches; `_program` parses and calls and catches nothing.
"""

import signal
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hipcli.commands import (
    ask,
    bench,
    chat,
    config,
    doctor,
    evaluate,
    inspect,
    methods,
    models,
    resuming,
    sessions,
    summarize,
)
from hipcli.config import settings
from hipcli.config.options import completion_requested, switched_on
from hipcli.engine.errors import HipError
from hipcli.exit_codes import ExitCode, exit_code
from hipcli.terminal import output, signals
from hipcli.terminal.console import Console
from hipcli.terminal.formatting import one_line
from hipcli.terminal.help_page import PARSE_ERROR, HelpfulCommand, HelpfulGroup
from hipcli.terminal.parse_errors import explained
from hipcli.version import __version__


def build() -> Any:
    """The Typer application as a command that can be parsed and invoked."""
    app = typer.Typer(
        cls=HelpfulGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback(invoke_without_command=True)(_root)
    asks = 'SOURCE... "QUESTION" [OPTIONS]'
    app.command("ask", cls=HelpfulCommand, options_metavar=asks)(ask.ask)
    reads = "SOURCE... [OPTIONS]"
    app.command("summarize", cls=HelpfulCommand, options_metavar=reads)(summarize.summarize)
    app.command("chat", cls=HelpfulCommand, options_metavar="[SOURCE...] [OPTIONS]")(chat.chat)
    app.command("inspect", cls=HelpfulCommand, options_metavar=reads)(inspect.inspect)
    app.add_typer(sessions.build(), name="sessions")
    app.add_typer(models.build(), name="models")
    app.add_typer(config.build(), name="config")
    app.add_typer(bench.build(), name="bench")
    app.command("methods", cls=HelpfulCommand)(methods.methods)
    app.command("eval", cls=HelpfulCommand)(evaluate.evaluate)
    app.command("doctor", cls=HelpfulCommand)(doctor.doctor)
    return typer.main.get_command(app)


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Ask questions about books, code bases and PDFs with a language model on this machine.

    \b
    hip ask book.pdf "Who wrote the letter?"
    hip ask src/ README.md "Where is the retry policy set?"
    hip ask --resume "And who received it?"
    git log | hip ask - "What changed in the parser?"
    hip inspect book.pdf
    """
    if version:
        context.obj.write(f"hip {__version__}\n")
        raise typer.Exit(ExitCode.OK)
    if context.invoked_subcommand is None:
        context.fail('no command given; for example: hip ask FILE "QUESTION"')


def run(arguments: Sequence[str], console: Console) -> int:
    """Runs one command line.

    Args:
        arguments: what stands after `hip`.
        console: the streams to use.

    Returns:
        The exit code; see `exit_codes.py`.
    """
    words = list(arguments)
    console.failure_format = output.requested_format(words, filter(switched_on, ("jsonl", "json")))
    console.debug = "--debug" in words or switched_on("debug")
    received: list[int] = []
    try:
        with signals.raised(before_exit=console.restore_terminal) as received:
            console.signals = received
            code = int(_program(words, console) or 0)
    except BaseException as error:
        return _explain(error, console, words, received)
    if received:
        # The engine ended its answer in good order; the signal decides the exit code all the same.
        console.line("Terminated" if received[0] == signal.SIGTERM else "Interrupted")
        return 128 + received[0]
    return code


def _program(arguments: list[str], console: Console) -> int | None:
    command = build()
    if completion_requested():
        command.main(args=arguments, prog_name="hip")
    arguments = resuming.with_resume_value(arguments)
    with command.make_context("hip", arguments, obj=console) as context:
        status: int | None = command.invoke(context)
    return status


def _explain(
    error: BaseException, console: Console, words: Sequence[str], received: list[int]
) -> int:
    """Tells the user about `error`, in the format that was asked for, and picks the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    if isinstance(error, BrokenPipeError):
        # Help pages are printed by Typer itself, so this may be the first we hear of it.
        console.abandon_stdout()
        return ExitCode.CLOSED_PIPE
    failure = _as_hip_error(error, console, words, received)
    if console.debug:
        console.write_stderr("".join(traceback.format_exception(error)))
    output.show_failure(console, failure)
    return exit_code(failure.code)


def _as_hip_error(
    error: BaseException, console: Console, words: Sequence[str], received: list[int]
) -> HipError:
    """`error` as something with a code, a message and a hint; `received` are the signals so far."""
    if isinstance(error, HipError):
        return error
    if signal.SIGTERM in received[:1]:
        return _failure("terminated", "Terminated", console.kept)
    # A library may turn the KeyboardInterrupt it was struck by into an error of its own.
    if isinstance(error, KeyboardInterrupt) or received:
        return _failure("interrupted", "Interrupted", console.kept)
    if isinstance(error, PARSE_ERROR):
        return _usage_failure(error, words)
    if isinstance(error, MemoryError):
        return _failure("does_not_fit", "out of memory", "try a shorter input or a smaller model")
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return _failure("failure", f"{where}{error.strerror}", "")
    message = one_line(f"internal error: {type(error).__name__}: {error}")
    return _failure("internal", message, "run again with --debug")


def _usage_failure(error: Any, words: Sequence[str]) -> HipError:
    """A parse error of Typer's, and which variable or file is to blame."""
    message, hint = explained(error, words)
    context, parameter = error.ctx, getattr(error, "param", None)
    origin = ""
    if context is not None and parameter is not None:
        origin = settings.origin(context, parameter.name)
    return _failure("usage", f"{message}, from {origin}" if origin else message, hint)


def _failure(code: str, message: str, hint: str) -> HipError:
    failure = HipError(message, hint)
    failure.code = code
    return failure
