"""`hip methods`: the attention methods, with their settings and defaults."""

import dataclasses
import importlib
from typing import Any

import typer

from hipcli import formatting
from hipcli.options import JSON, OUTPUT, TALK
from hipcli.output import SCHEMA_VERSION, open_sink
from hipcli.settings import Settings, takes


@takes(JSON, OUTPUT, TALK)
def methods(context: typer.Context) -> int:
    """List the attention methods, one line each, with their settings and defaults.

    \b
    hip methods
    hip ask book.pdf "Who is she?" --method dense
    """
    from hipcli.engine.methods import METHODS

    settings = Settings.of(context)
    rows = [
        {"name": name, "summary": entry[0], "settings": _defaults(entry[1])}
        for name, entry in METHODS.items()
    ]
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "json":
            sink.write_json({"schema_version": SCHEMA_VERSION, "methods": rows})
        else:
            sink.write(formatting.table(("METHOD", "WHAT IT DOES", "SETTINGS"), map(_row, rows)))
    return 0


def _row(entry: dict[str, Any]) -> tuple[str, str, str]:
    shown = ", ".join(f"{name}={value}" for name, value in entry["settings"].items())
    return entry["name"], entry["summary"], shown or "-"


def _defaults(config_path: str) -> dict[str, Any]:
    """Fields and defaults of the config class at `module:attribute`."""
    module_name, _, attribute = config_path.partition(":")
    config = getattr(importlib.import_module(module_name), attribute)
    return {
        field.name: None if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(config)
    }
