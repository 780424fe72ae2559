"""`hip config`: every setting, its value, and where it comes from."""

from typing import Any

import typer

from hipcli import formatting, options
from hipcli.help_page import HelpfulCommand, HelpfulGroup
from hipcli.options import JSON, TALK
from hipcli.output import SCHEMA_VERSION, open_sink, write_path
from hipcli.settings import Settings, takes


def build() -> typer.Typer:
    """The group of commands `hip config`."""
    app = typer.Typer(cls=HelpfulGroup, rich_markup_mode=None, help="Show the settings.")
    app.callback(invoke_without_command=True)(_group)
    app.command("show", cls=HelpfulCommand, options_metavar="[OPTIONS]")(show)
    app.command("path", cls=HelpfulCommand, options_metavar="[OPTIONS]")(path)
    return app


def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.fail("no command given: show or path")


@takes(options.COUNT, options.EVAL, *options.SECTIONS.values())
def show(context: typer.Context) -> int:
    """Show every key of the configuration, its value, and what decided it.

    \b
    hip config show
    hip config show --config project.toml --json

    A flag goes before an environment variable, a variable before the file named by --config, that
    before the user's own file, and that before the default.
    """
    settings = Settings.of(context)
    rows = [
        {
            "key": option.name,
            "value": settings.values[option.name],
            "source": settings.sources[option.name],
            "variable": option.variable,
            "help": option.help,
        }
        for option in options.ALL
        if option.in_file and option.name in settings.values
    ]
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "text":
            sink.write(formatting.table(("KEY", "VALUE", "FROM"), map(_row, rows)))
        else:
            sink.write_json({"schema_version": SCHEMA_VERSION, "settings": rows})
    return 0


@takes(JSON, TALK)
def path(context: typer.Context) -> int:
    """Print where the user's configuration file lies, or would lie.

    \b
    hip config path
    ${EDITOR:-vi} "$(hip config path)"
    """
    settings = Settings.of(context)
    write_path(context.obj, settings.output_format, options.user_config_file())
    return 0


def _row(row: dict[str, Any]) -> tuple[str, str, str]:
    """A key as it would stand in a file."""
    value = row["value"]
    if value is None:
        shown = "-"
    elif isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, list | tuple):
        shown = "[" + ", ".join(f'"{item}"' for item in value) + "]"
    elif isinstance(value, int | float):
        shown = str(value)
    else:
        shown = f'"{value}"'
    return row["key"], shown, row["source"]
