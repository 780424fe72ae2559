"""Options as parameters of Typer's commands."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hipcli.config import config_file, numbers, options
from hipcli.config.option import Option
from hipcli.engine.nearest import nearest
from hipcli.terminal import completion

# Keys of a context's `meta`: the parsed values by name, and those that a file gave.
VALUES = "hipcli.values"
FROM_FILES = "hipcli.from_files"
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
_TRUTHS |= {"false": False, "no": False, "off": False, "0": False}


def takes(*groups: tuple[Option, ...]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorates a command: adds the options of `groups` to its own parameters.

    The command, whose first parameter is `context`, doesn't receive their values one by one; it
    asks for `Settings.of(context)`.
    """
    shared = [option for group in groups for option in group]

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(command).parameters

        def parsed(**values: Any) -> int:
            # What the context holds by itself isn't converted yet in every version of Typer.
            values["context"].meta[VALUES] = values
            return command(**{name: value for name, value in values.items() if name in own})

        parsed.__doc__ = command.__doc__
        parsed.__name__ = command.__name__
        parsed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own.values(), *map(_parameter, shared)]
        )
        return parsed

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    """`option` as a parameter of a Typer command."""
    kind: Any = list[str] if option.kind is list else option.kind
    if option.default is None or option.kind is list:
        kind = kind | None
    flags = option.flags or (f"--{option.name.replace('_', '-')}",)
    counted = option.name == "verbose"
    callback: Callable[..., Any] | None = None
    if option.choices:
        callback = checked_choice(option.choices)
    elif option.name == "config":
        callback = _load_files
    info = typer.Option(
        *flags,
        help=option.help,
        envvar=option.variable,
        show_envvar=False,
        show_default=_shown_default(option),
        metavar="|".join(option.choices) or option.metavar,
        parser=None if counted else _parser(option),
        count=counted,
        is_eager=option.name == "config",
        callback=callback,
        autocompletion=_completer(option),
    )
    default = None if option.kind is list else option.default
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _parser(option: Option) -> Callable[[Any], Any] | None:
    """What reads a number; Typer's own words about a wrong one do not repeat it."""
    if option.kind is int:
        return numbers.whole(option.minimum)
    return numbers.decimal(option.minimum) if option.kind is float else None


def value_of(option: Option, words: Sequence[str]) -> Any:
    """A value from words as the flag of `option` would read them: more than one for a list alone.

    Raises:
        typer.BadParameter: it is none; the words say why.
    """
    if option.kind is list:
        return list(words)
    if len(words) != 1:
        raise typer.BadParameter(f"takes one value, and there are {len(words)}")
    word = words[0]
    if option.kind is bool:
        if word.lower() not in _TRUTHS:
            raise typer.BadParameter(f"{word!r} is not true or false")
        return _TRUTHS[word.lower()]
    parse = _parser(option)
    if parse is not None:
        return parse(word)
    return checked_choice(option.choices)(word) if option.choices else option.kind(word)


def _completer(option: Option) -> Callable[..., Any] | None:
    """What a shell offers for the value of `option`."""
    if option.choices:
        return lambda: list(option.choices)
    completers: dict[str, Callable[..., Any]] = {
        "model": completion.models,
        "method": completion.methods,
    }
    return completers.get(option.name)


def _shown_default(option: Option) -> bool | str:
    return (
        option.kind is not bool and option.default not in (None, (), "", 0) or option.kind is float
    )


def checked_choice(choices: Sequence[str]) -> Callable[[str | None], str | None]:
    """A callback of Typer's that refuses what is not among `choices`, with a guess."""

    def check(value: str | None) -> str | None:
        if value is None or value in choices:
            return value
        close = nearest(value, choices)
        hint = f"; did you mean {close!r}?" if close else ""
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}{hint}")

    return check


def _load_files(context: typer.Context, value: Path | None) -> Path | None:
    """Callback of `--config`, run before any other option is looked at."""
    if not context.resilient_parsing:
        found = config_file.load(value, options.user_config_file(), options.ALL)
        context.default_map = {name: entry.value for name, entry in found.items()}
        context.meta[FROM_FILES] = found
    return value
