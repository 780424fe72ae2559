"""`hip methods`: the attention methods, their sources, costs, settings and defaults."""

import dataclasses
import importlib
from typing import Any

import typer

from hipcli.config.options import JSON, OUTPUT, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.terminal import formatting
from hipcli.terminal.output import columns, show


@takes(JSON, OUTPUT, TALK)
def methods(context: typer.Context) -> int:
    """List the attention methods: what each does, where it was published, what a token costs, and
    its settings with their defaults.

    \b
    hip methods
    hip ask book.pdf "Who is she?" --method dense
    """
    from hipcli.engine.methods import METHODS

    settings = Settings.of(context)
    rows = [
        {
            "name": name,
            "summary": entry.summary,
            "source": entry.source,
            "cost": entry.cost,
            "settings": _defaults(entry.config),
        }
        for name, entry in METHODS.items()
    ]
    heads = ("METHOD", "WHAT IT DOES", "SOURCE", "BESIDES ATTENTION IT READS", "SETTINGS")
    text = formatting.table(heads, map(_row, rows), width=columns(context.obj, settings))
    show(context.obj, settings, text, methods=rows)
    return 0


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    from hipcli.engine.methods.configs import HipConfig

    # What is left to the device is told as what comes of it.
    left = HipConfig.AUTOMATIC if entry["name"] == "hip" else {}
    shown = ", ".join(
        f"{name}={_on_devices(*left[name]) if name in left else value}"
        for name, value in entry["settings"].items()
    )
    what = (entry["name"], entry["summary"], entry["source"], entry["cost"])
    return (*what, shown or "-")


def _on_devices(on_cpu: int, elsewhere: int) -> str:
    from hipcli.engine.methods.configs import EVERYTHING

    return f"0 ({on_cpu} on a CPU, {'all' if elsewhere == EVERYTHING else elsewhere} on a GPU)"


def _defaults(config_path: str) -> dict[str, Any]:
    """Fields and defaults of the config class at `module:attribute`."""
    module_name, _, attribute = config_path.partition(":")
    config = getattr(importlib.import_module(module_name), attribute)
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(config)
    }
