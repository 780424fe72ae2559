"""What Typer has to say about a command line, as one line: what is wrong, and what was meant."""

import os
from collections.abc import Sequence
from typing import Any

from hipcli.engine.nearest import nearest
from hipcli.terminal.formatting import one_line


def explained(error: Any, words: Sequence[str]) -> tuple[str, str]:
    """A message and a hint.

    Args:
        error: a parse error of Typer's.
        words: the command line.
    """
    context = error.ctx
    command = context.command_path if context is not None else "hip"
    hint = f"try: {command} --help"
    if hasattr(error, "possibilities"):
        return _unknown(error.option_name, context, words, hint)
    if hasattr(error, "option_name"):
        takes_one = "does not take" not in error.message
        return f"{error.option_name} {'needs a value' if takes_one else 'takes no value'}", hint
    parameter = getattr(error, "param", None)
    message = one_line(error.format_message()).rstrip(".")
    if parameter is not None and message.startswith("Invalid value for "):
        message = f"{_called(parameter)}: {one_line(error.message)}"
    return message, hint


def _unknown(option: str, context: Any, words: Sequence[str], hint: str) -> tuple[str, str]:
    """An option that there is not."""
    # Of `-Why?` Typer names the first letter alone.
    word = next((word for word in words if word.startswith(option)), option)
    message = f"no such option {word}" if option.startswith("--") else f"no such option: {word}"
    if os.path.lexists(word):
        return message, f"a file of that name is written {os.path.join('.', word)}"
    if not option.startswith("--"):
        return message, f"what begins with a dash and is no option goes after --; {hint}"
    known = [flag for parameter in context.command.get_params(context) for flag in parameter.opts]
    close = nearest(option, known)
    return message, f"did you mean {close}? {hint}" if close else hint


def _called(parameter: Any) -> str:
    """The long flag of an option, or the placeholder of an argument."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.make_metavar(None) if parameter.metavar is None else parameter.metavar)
