"""`hip bench`: how fast this machine is, beside the dense attention of PyTorch in the same run."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated

import typer

from hipcli.config.options import CACHE, MODEL, MODELS_DIR, TALK, process_environment
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import HipError, UsageError
from hipcli.engine.threads import prepare_threads
from hipcli.exit_codes import ExitCode
from hipcli.terminal.console import Console
from hipcli.terminal.help_page import group

Rest = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OPTION...]", help="Options of the benchmark itself."),
]
Device = Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="Where to run.")]


def build() -> typer.Typer:
    """The group of commands `hip bench`."""
    commands = {
        "kernels": (kernels, "[-- OPTION...]"),
        "engine": (engine, "[OPTIONS] [-- OPTION...]"),
        "distributed": (distributed, "[OPTIONS] [-- OPTION...]"),
    }
    return group("Measure the speed.", commands)


@takes(TALK)
def kernels(context: typer.Context, rest: Rest = None) -> int:
    """Time the kernels on a GPU beside dense attention, after checking that they are right.

    \b
    hip bench kernels
    hip bench kernels -- --contexts 131072

    Prints a table, then one line of JSON.
    """
    from hipcli.runs.checks import check_device

    Settings.of(context)
    check_device("cuda")
    from hipcli.engine.benchmarks.kernels import main

    return _ended(context.obj, lambda: main(rest or []))


@takes(MODEL, MODELS_DIR, CACHE, TALK)
def engine(context: typer.Context, device: Device = "cpu", rest: Rest = None) -> int:
    """Time a whole model: reading, answering, and dense attention in the same run.

    \b
    hip bench engine
    hip bench engine --model smollm2 -- --lengths 2048 8192
    hip bench engine --device cuda

    On a CPU the model is real; on a GPU it has the shape of Llama-3.1-8B and random weights.
    Prints a table, then one line of JSON. `hip bench engine -- --help` lists what may stand behind
    the two dashes.
    """
    words = _words(context, device, rest)
    from hipcli.engine.benchmarks.engine import main
    from hipcli.engine.module_command import module_command

    program = module_command("hipcli.engine.benchmarks")
    return _ended(context.obj, lambda: main(program, words))


@takes(MODEL, MODELS_DIR, CACHE, TALK)
def distributed(context: typer.Context, device: Device = "cpu", rest: Rest = None) -> int:
    """Time reading and answering on several GPUs or processes, and count what they send.

    \b
    hip bench distributed --device cuda -- --ranks 1 2 --length 1048576
    hip bench distributed -- --ranks 1 2 4

    Prints a table, then one line of JSON; fails if an answer in fp32 differs from that of one, or
    the bytes from what they must be. `hip bench distributed -- --help` lists what may stand behind
    the two dashes.
    """
    words = _words(context, device, rest)
    from hipcli.engine.benchmarks.distributed import main

    return _ended(context.obj, lambda: main(words))


def _words(context: typer.Context, device: str, rest: list[str] | None) -> list[str]:
    """The words of a benchmark of a model, whose threads will be as many as when hip answers."""
    from hipcli.runs.checks import check_device

    settings = Settings.of(context)
    prepare_threads(process_environment())
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} cannot be measured", "use --device cpu or cuda")
    check_device(device)
    words = ["--device", device, "--model", settings.values["model"]]
    return [*words, "--models-dir", str(settings.models_dir), *(rest or [])]


def _ended(console: Console, main: Callable[[], int]) -> int:
    """Runs a benchmark, whose prints are the output here.

    Raises:
        UsageError: options that it does not have; it has said which.
        HipError: a part of it failed; it has said which.
    """
    try:
        with redirect_stdout(console.stdout or sys.stderr):
            code = main()
    except SystemExit as error:
        if not error.code:
            return ExitCode.OK
        raise UsageError(
            "the benchmark has no such option", "see: hip bench engine -- -h"
        ) from None
    if code:
        raise HipError("a part of the benchmark failed", "the lines above say which")
    return ExitCode.OK
