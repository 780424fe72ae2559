"""`--resume` and `-c`, which several commands take: a saved session in place of documents."""

from collections.abc import Sequence
from typing import Annotated

import typer

from hipcli.config import arguments
from hipcli.config.arguments import Sources
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.runs.checks import check_settings
from hipcli.terminal import completion
from hipcli.terminal.console import Console

Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        "-c",
        metavar="[ID]",
        autocompletion=completion.sessions,
        help="Take a saved session (an id, its start, or a name; without it the latest).",
    ),
]
_COMMANDS = ("ask", "summarize", "chat")


def check_before_reading(settings: Settings, resume: str | None) -> None:
    """Refuses what can be refused before anything is read.

    Raises:
        UsageError: as `check_settings`, or `--resume` with `--no-cache`.
    """
    if resume is None:
        check_settings(settings)
    elif settings.values["no_cache"]:
        raise UsageError("--resume and --no-cache exclude one another", "give one of them")


def resumed_or_read(
    console: Console, settings: Settings, words: Sequence[str], resume: str | None
) -> tuple[Sources | None, str]:
    """The sources of a command, None when it resumes; and the session to resume.

    Raises:
        UsageError: no source, or sources besides `--resume`.
    """
    check_before_reading(settings, resume)
    listed = settings.values["files_from"], settings.values["null"]
    if resume is not None:
        arguments.refuse_sources(words, settings.values["files_from"])
        return None, resume
    return arguments.read_sources(console, words, *listed), ""


def with_resume_value(words: Sequence[str]) -> list[str]:
    """`hip ask --resume` and `-c` may stand without a value, which Typer's options can't.

    Returns:
        The words, an empty value added to a `--resume` that is followed by an option or nothing.
    """
    words = list(words)
    if not words or words[0] not in _COMMANDS:
        return words
    end = words.index("--") if "--" in words else len(words)
    for position in range(1, end):
        is_resume = words[position] in ("--resume", "-c")
        following = words[position + 1] if position + 1 < len(words) else "-"
        if is_resume and following.startswith("-"):
            words[position] = "--resume="
    return words
