"""`hip config`: every setting, its value, and where it comes from; and keys of the files."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hipcli.config import config_edit, config_file, options
from hipcli.config.eval_options import EVAL
from hipcli.config.option import Option
from hipcli.config.options import JSON, TALK
from hipcli.config.parameters import takes, value_of
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.runs.checks import check_settings
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.help_page import group
from hipcli.terminal.output import open_file
from hipcli.terminal.output import show as show_result

KEYS = {option.name: option for option in options.ALL if option.in_file}
# What a broken file says about a command must not keep it from mending that file.
_TALK = tuple(option for option in TALK if option.in_file)
File = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Change this file instead of the user's own."),
]


def _keys() -> list[str]:
    return list(KEYS)


def build() -> typer.Typer:
    """The group of commands `hip config`."""
    commands: dict[str, tuple[Callable[..., int], str]] = {
        "show": (show, "[OPTIONS]"),
        "set": (set_value, "[OPTIONS] KEY VALUE..."),
        "unset": (unset, "[OPTIONS] KEY..."),
        "path": (path, "[OPTIONS]"),
    }
    return group("Show and change the settings.", commands)


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


@takes(_TALK)
def set_value(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", autocompletion=_keys)],
    words: Annotated[list[str], typer.Argument(metavar="VALUE...")],
    config: File = None,
) -> int:
    """Set a key of the user's configuration file, which need not exist yet.

    \b
    hip config set model org/name
    hip config set max_new_tokens 200
    hip config set include "*.md" "*.rst"
    hip config set --config project.toml cite true

    A key is the name of an option, and the value what the option takes; a value that begins with a
    dash goes behind --. Comments and all other lines of the file stay as they are.
    """
    Settings.of(context)
    name, file = _name(key), config or options.user_config_file()
    if name not in KEYS:
        raise UsageError(f"there is no key {key!r}", config_file.suggestion(name, KEYS))
    try:
        value = value_of(KEYS[name], words)
    except typer.BadParameter as error:
        raise UsageError(f"{name}: {error.message}") from error
    text, said = config_file.read(file) if file.exists() else ("", {})
    _check(file, name, value)
    if isinstance(value, Path):
        # A file counts wherever hip is started.
        value = str(value if str(value) == "-" else value.absolute())
    _replace(context.obj, file, config_edit.with_value(text, name, value), said | {name: value})
    return 0


@takes(_TALK)
def unset(
    context: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", autocompletion=_keys)],
    config: File = None,
) -> int:
    """Take keys out of the user's configuration file, those too that hip does not know.

    \b
    hip config unset model
    """
    Settings.of(context)
    file = config or options.user_config_file()
    text, said = config_file.read(file) if file.exists() else ("", {})
    for key in keys:
        name = key if key in said else _name(key)
        if name not in said:
            hint = "hip config show says where each value comes from"
            raise UsageError(f"there is no {name} in {file}", hint)
        del said[name]
        text = config_edit.without(text, name)
    _replace(context.obj, file, text, said)
    return 0


def _name(key: str) -> str:
    """A key as it stands in a file, also when it was typed as a flag."""
    return key.lstrip("-").replace("-", "_").lower()


def _check(file: Path, name: str, value: Any) -> None:
    """Refuses a value with which no run could begin, given what else the file says.

    Raises:
        UsageError: why; or something else in the file cannot be.
    """
    values: dict[str, Any] = {option.name: option.default for option in options.ALL}
    for key, entry in config_file.load(None, file, options.ALL).items():
        values[key] = _as_option(KEYS[key], entry.value)
    check_settings(Settings(values | {name: value}, dict.fromkeys(values, str(file))))


def _as_option(option: Option, value: Any) -> Any:
    return option.kind(value) if option.kind in (Path, float) else value


def _replace(console: Console, file: Path, text: str, meant: dict[str, Any]) -> None:
    """Writes the text of a configuration file, whole or not at all.

    Raises:
        UsageError: it would not say what is meant, or cannot be written.
    """
    if config_edit.parsed(text) != meant:
        raise UsageError(f"{file} has more than keys and values", "change it in an editor")
    try:
        content = text.encode("utf-8")
        if file == options.user_config_file():
            file.parent.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError as error:
        raise UsageError("the value is not valid text", "write it in UTF-8") from error
    except OSError as error:
        raise UsageError(f"cannot make the folder of {file}: {error.strerror}") from error
    with open_file(file, "--config") as sink:
        sink.write_bytes(content)
    console.note(f"written: {file}")


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
