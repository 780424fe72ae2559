"""One run of `hip models calibrate`: texts, votes, weights, a file beside the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hipcli.config.settings import Settings
from hipcli.engine.events import Event, Phase, Progress
from hipcli.runs.evaluating import parse_lengths
from hipcli.terminal.console import Console
from hipcli.terminal.progress import ProgressView

if TYPE_CHECKING:
    from hipcli.engine.engine import Engine
    from hipcli.engine.models import ModelFolder
    from hipcli.engine.models.heads import HeadWeights


def calibrated(
    console: Console, settings: Settings, name: str | None, open_engine: Callable[..., "Engine"]
) -> tuple[str, dict[str, Any]]:
    """Calibrate a model; a line for people, and the fields of the JSON document.

    Args:
        console: for warnings and progress.
        settings: the parsed options.
        name: of the model; None for the one of the settings.
        open_engine: as in `opening.py`.

    Raises:
        ModelError: the folder of the model takes no file; said before anything is computed.
    """
    from hipcli.engine.models.heads import check_writable, write_heads

    config = settings.engine_config(model=name or settings.values["model"], method="hip")
    lengths = parse_lengths(settings.values["lengths"])
    with ProgressView(console, settings.shows_progress) as view, console.libraries_kept_quiet():
        engine = open_engine(console, config, view)
        check_writable(engine.folder.path)
        heads = _measured(engine, lengths, settings, view)
        path = write_heads(engine.folder.path, heads)
    measured = heads.measured
    before, after = measured["recall_1_before"], measured["recall_1_after"]
    if after < before:
        console.warn(
            f"{engine.folder.name} finds less with it; hip models calibrate --remove undoes it"
        )
    text = (
        f"{path}: of {measured['held_out']} questions kept out, the best page is right for"
        f" {after:.0%}; {before:.0%} with all heads alike\n"
    )
    document = {
        "model": engine.description["model"] | {"heads": heads.digest},
        "path": path,
        "settings": heads.settings,
        "measured": measured,
        "weights": heads.weights,
    }
    return text, document


def _measured(
    engine: "Engine", lengths: tuple[int, ...], settings: Settings, view: ProgressView
) -> "HeadWeights":
    from hipcli.engine.calibration.calibrating import CalibrationPlan, calibrate
    from hipcli.prompts.whole_text import TextPrompts

    def told(event: Event) -> None:
        if isinstance(event, Progress):
            view.advance(event)
        elif isinstance(event, Phase):
            view.phase(event.name)

    plan = CalibrationPlan(lengths, settings.values["samples"], settings.values["seed"])
    return calibrate(
        engine,
        TextPrompts(engine.tokenizer),
        plan,
        told,
        lambda number, total: view.phase(f"text {number + 1} of {total}"),
    )


def uncalibrated(settings: Settings, name: str | None) -> tuple["ModelFolder", bool]:
    """Remove a model's calibration; the model, and whether it had one."""
    from hipcli.engine.models import resolve
    from hipcli.engine.models.heads import remove_heads

    folder = resolve(name or settings.values["model"], models_dir=settings.models_dir)
    return folder, remove_heads(folder.path)
