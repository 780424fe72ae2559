"""`hip models calibrate`: which heads of a model retrieve, kept beside its weights."""

from typing import Annotated

import typer

from hipcli.config.eval_options import EVAL
from hipcli.config.option import changed
from hipcli.config.options import ANSWER, CACHE, JSON, MACHINE, MODEL, MODELS_DIR, PROGRESS, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.runs.opening import open_engine
from hipcli.terminal import completion
from hipcli.terminal.output import show

Name = Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=completion.models)]
Remove = Annotated[
    bool, typer.Option("--remove", help="Remove heads.json: heads vote as before it was made.")
]

_TEXTS = (
    changed(EVAL, "lengths", default="16k", help="Tokens of a text, as in 8k,16k (k is 1,024)."),
    changed(EVAL, "samples", default=2, help="Texts of each length in prose, and in code."),
    changed(ANSWER, "seed", help="Seed of all texts."),
)
_MACHINE = tuple(changed(MACHINE, name) for name in ("device", "dtype"))


@takes(_TEXTS, MODEL, MODELS_DIR, _MACHINE, CACHE, JSON, PROGRESS, TALK)
def calibrate(context: typer.Context, name: Name = None, remove: Remove = False) -> int:
    """Find out which heads of a model retrieve, and let their votes count more.

    \b
    hip models calibrate smollm2
    hip models calibrate ./my-model --lengths 8k --samples 4
    hip models calibrate smollm2 --remove

    Texts are generated and asked about; no document of yours is read. Weights go to heads.json
    beside the model's own, and every command votes by them from then on (--no-calibrated does
    not). As it stands a model reads four texts and votes on 40 questions about each: minutes on a
    CPU for 135 million parameters, seconds on a GPU. The same seed gives the same weights.
    """
    from hipcli.runs.calibrating import calibrated, uncalibrated

    settings = Settings.of(context)
    if remove:
        folder, removed = uncalibrated(settings, name)
        what = "removed the calibration of" if removed else "no calibration of"
        context.obj.note(f"{what} {folder.name}")
        show(context.obj, settings, "", removed=removed)
        return 0
    text, document = calibrated(context.obj, settings, name, open_engine)
    show(context.obj, settings, text, **document)
    return 0
