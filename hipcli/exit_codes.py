"""Exit codes of `hip`; cli.md of the design calls them the contract with scripts."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    INPUT_UNUSABLE = 3
    DOES_NOT_FIT = 4
    NOT_CACHED = 5
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143


_OF_ERRORS = {
    "failure": ExitCode.FAILURE,
    "model": ExitCode.FAILURE,
    "session": ExitCode.FAILURE,
    "internal": ExitCode.FAILURE,
    "usage": ExitCode.USAGE,
    "input_unusable": ExitCode.INPUT_UNUSABLE,
    "does_not_fit": ExitCode.DOES_NOT_FIT,
    "not_cached": ExitCode.NOT_CACHED,
    "interrupted": ExitCode.INTERRUPTED,
    "terminated": ExitCode.TERMINATED,
}


def exit_code(error: str) -> ExitCode:
    """The exit code of an error, by its `code`."""
    return _OF_ERRORS.get(error, ExitCode.FAILURE)
