"""`hip config`: every setting, its value, and where it comes from."""

from typing import Any

import typer

from hipcli.config import options
from hipcli.config.eval_options import EVAL
from hipcli.config.options import JSON, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.terminal import formatting
from hipcli.terminal.help_page import group
from hipcli.terminal.output import show as show_result


def build() -> typer.Typer:
    """The group of commands `hip config`."""
    commands = {
        "show": (show, "[OPTIONS]"),
        "path": (path, "[OPTIONS]"),
    }
    return group("Show the settings.", commands)


@takes(options.COUNT, EVAL, *options.SECTIONS.values())
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
    text = formatting.table(("KEY", "VALUE", "FROM"), map(_row, rows))
    show_result(context.obj, settings, text, settings=rows)
    return 0


@takes(JSON, TALK)
def path(context: typer.Context) -> int:
    """Print where the user's configuration file lies, or would lie.

    \b
    hip config path
    ${EDITOR:-vi} "$(hip config path)"
    """
    settings = Settings.of(context)
    file = options.user_config_file()
    show_result(context.obj, settings, f"{file}\n", path=file)
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
