"""`docs/help.md` and the man page, made from the commands themselves.

    python -m hipcli.terminal.manual help > docs/help.md
    python -m hipcli.terminal.manual man > docs/hip.1

Written for a terminal of 80 columns, whatever this one is; a test compares them with the files.
"""

import io
import sys
from collections.abc import Iterator
from typing import Any

from hipcli.exit_codes import ExitCode
from hipcli.version import __version__

_COLUMNS = 80
_EXIT_CODES = {
    ExitCode.OK: "answered, also with warnings",
    ExitCode.FAILURE: "something failed while running, or a model or session is not here",
    ExitCode.USAGE: "the command line cannot be used as given",
    ExitCode.INPUT_UNUSABLE: "the input cannot be used: missing, encrypted, without text",
    ExitCode.DOES_NOT_FIT: "more tokens or bytes than fit",
    ExitCode.NOT_CACHED: "--cached-only, and no saved session matches",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.CLOSED_PIPE: "the reader of the output went away",
    ExitCode.TERMINATED: "ended by SIGTERM",
}


def help_pages() -> Iterator[tuple[str, str]]:
    """Each command with its help page, groups before their commands: ("hip ask", "Usage: ...")."""
    from hipcli.app import build
    from hipcli.terminal.console import Console

    console = Console(None, io.StringIO(), io.StringIO(), width=_COLUMNS)
    command = build()
    context = command.make_context("hip", [], obj=console, resilient_parsing=True)
    yield from _pages(command, context)


def _pages(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    context.terminal_width = _COLUMNS
    yield context.command_path, command.get_help(context).rstrip() + "\n"
    for name in getattr(command, "commands", {}):
        inner = command.commands[name]
        yield from _pages(inner, type(context)(inner, info_name=name, parent=context))


def markdown() -> str:
    """All help pages as one Markdown document."""
    parts = [
        "# hip, command by command\n\n"
        "Made by `python -m hipcli.terminal.manual help`; `hip COMMAND --help` prints the same.\n"
    ]
    parts += [f"## {name}\n\n```\n{page}```\n" for name, page in help_pages()]
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in _EXIT_CODES.items()]
    parts.append("\n".join(["## Exit codes", "", "| code | meaning |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def man_page() -> str:
    """The manual as roff, for `man hip`."""
    lines = [
        f'.TH HIP 1 "" "hip {__version__}" "User Commands"',
        ".SH NAME",
        "hip \\- ask questions about long documents with a language model on this machine",
    ]
    for name, page in help_pages():
        lines += [f".SH {name.upper()}", ".nf", *map(_roff, page.splitlines()), ".fi"]
    lines.append(".SH EXIT STATUS")
    for code, meaning in _EXIT_CODES.items():
        lines += [".TP", str(int(code)), _roff(meaning)]
    return "\n".join(lines) + "\n"


def _roff(line: str) -> str:
    """A line whose every character means itself."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    sys.stdout.write(man_page() if sys.argv[1:] == ["man"] else markdown())
