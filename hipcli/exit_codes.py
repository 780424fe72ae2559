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
