"""`--help` pages: what the command does, examples, then the options in sections."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hipcli.config.eval_options import EVAL
from hipcli.config.options import SECTIONS
from hipcli.engine.nearest import nearest

# Typer carries its own copy of Click, under a name that changed; this is its class of usage errors.
PARSE_ERROR: Any = typer.BadParameter.__base__

# Characters that no first sentence has.
_WHOLE = 1000
# Options that a command declares itself.
_OWN = {
    "question_file": "Question",
    "batch": "Many questions",
    "unordered": "Many questions",
    "cluster": "Many questions",
    "workers": "Many questions",
    "resume": "Question",
    "converse": "Question",
    "per": "Summary",
    "words": "Summary",
    "focus": "Summary",
    "count": "Shown",
    "text": "Shown",
    "tree": "Shown",
    "open_evidence": "Answer",
}
_SECTION_OF = {option.name: title for title, group in SECTIONS.items() for option in group}
_SECTION_OF |= {option.name: "Evaluation" for option in EVAL} | _OWN


class HelpfulCommand(TyperCommand):
    """A command whose usage line is written by hand and whose options stand in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar] if self.options_metavar else []

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return list(super().parse_args(ctx, args))
        except PARSE_ERROR as error:
            # An option without its value does not say whose option it is.
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _format_sections(self, ctx, formatter)


class HelpfulGroup(TyperGroup):
    """A group of commands, listed before its few options."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            if os.path.lexists(args[0]):
                ctx.fail(f'{args[0]!r} is a file, not a command; try hip ask {args[0]} "QUESTION"')
            close = nearest(args[0], self.list_commands(ctx))
            guess = f". Did you mean {close!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}{guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The first sentence of each command, whole."""
        names = self.list_commands(ctx)
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_WHOLE)) for name, command in commands]
            )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        _format_sections(self, ctx, formatter)


def group(about: str, commands: Mapping[str, tuple[Callable[..., int], str]]) -> typer.Typer:
    """A group of commands; called without one, it names them.

    Args:
        about: a line for `--help`.
        commands: by name, each with what follows its name in the usage line.
    """
    app = typer.Typer(cls=HelpfulGroup, rich_markup_mode=None, help=about)
    *names, last = commands

    def without_command(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            context.fail(f"no command given: {', '.join(names)} or {last}")

    app.callback(invoke_without_command=True)(without_command)
    for name, (command, usage) in commands.items():
        app.command(name, cls=HelpfulCommand, options_metavar=usage)(command)
    return app


def _format_sections(command: Any, ctx: Any, formatter: Any) -> None:
    titles = ["Summary", "Question", "Many questions", "Shown", "Evaluation", *SECTIONS, "Other"]
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "option":
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections[_SECTION_OF.get(parameter.name, "Other")].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
