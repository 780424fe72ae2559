"""`hip models`: what can answer, and fetching it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli.commands.calibrate import calibrate
from hipcli.config.options import CACHE, JSON, MODEL, MODELS_DIR, OUTPUT, PROGRESS, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.runs.opening import fetch
from hipcli.terminal import completion, formatting
from hipcli.terminal.console import Console
from hipcli.terminal.help_page import group
from hipcli.terminal.output import columns
from hipcli.terminal.output import show as show_result
from hipcli.terminal.progress import ProgressView

if TYPE_CHECKING:
    from hipcli.engine.models import ModelFolder

Name = Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=completion.models)]


def build() -> typer.Typer:
    """The group of commands `hip models`."""
    commands = {
        "list": (list_, "[OPTIONS]"),
        "show": (show, "[NAME] [OPTIONS]"),
        "pull": (pull, "NAME [OPTIONS]"),
        "calibrate": (calibrate, "[NAME] [OPTIONS]"),
        "rm": (rm, "NAME [OPTIONS]"),
        "path": (path, "[NAME] [OPTIONS]"),
    }
    return group("List, fetch, calibrate and remove models.", commands)


@takes(MODELS_DIR, CACHE, JSON, OUTPUT, TALK)
def list_(context: typer.Context) -> int:
    """List the models on this machine.

    \b
    hip models list
    """
    from hipcli.engine.models import installed

    settings = Settings.of(context)
    rows = [describe(folder) for folder in installed(settings.models_dir)]
    header = ("NAME", "FORMAT", "SIZE", "REVISION", "FROM", "PATH")
    width = columns(context.obj, settings)
    text = formatting.table(header, map(_row, rows), right=(2,), width=width) if rows else ""
    show_result(context.obj, settings, text, models=rows)
    if not rows:
        context.obj.note("no models yet; hip models pull smollm2 fetches the default one")
    return 0


@takes(MODEL, MODELS_DIR, CACHE, JSON, OUTPUT, TALK)
def show(context: typer.Context, name: Name = None) -> int:
    """Show what a model is and needs; without NAME, the one that hip ask would take.

    \b
    hip models show smollm2
    hip models show ./my-model --json
    """
    from hipcli.commands.inspect import fits_disk, kv_bytes
    from hipcli.engine.json_object import read_json
    from hipcli.engine.models import resolve
    from hipcli.engine.models.heads import find_heads

    settings = Settings.of(context)
    folder = resolve(name or settings.values["model"], models_dir=settings.models_dir)
    config = read_json(folder.path / "config.json")
    config = config.get("text_config", config)
    trained = config.get("max_position_embeddings")
    context_bytes = kv_bytes(folder.path, trained) if trained else None
    found = find_heads(folder.path, settings.models_dir)
    if found.problem:
        context.obj.warn(found.problem)
    heads = found.heads
    document = {
        **describe(folder),
        "architecture": config.get("model_type"),
        "layers": config.get("num_hidden_layers"),
        "trained_tokens": trained,
        "kv_bytes_per_token": context_bytes // trained if context_bytes and trained else None,
        "kv_bytes_of_trained_tokens": context_bytes,
        "fits": fits_disk(context_bytes, settings.cache_root),
        "calibrated": heads is not None,
        **({"heads": heads.digest, **heads.measured} if heads is not None else {}),
    }
    show_result(context.obj, settings, formatting.facts(document), model=document)
    return 0


@takes(MODELS_DIR, CACHE, JSON, OUTPUT, PROGRESS, TALK)
def pull(context: typer.Context, name: Name = None) -> int:
    """Fetch a model; the only command that does so unasked is the first `hip ask`.

    \b
    hip models pull smollm2
    hip models pull Qwen/Qwen2.5-0.5B-Instruct
    """
    settings = Settings.of(context)
    console: Console = context.obj
    if not name:
        raise UsageError("no model named", "try: hip models pull smollm2")
    with ProgressView(console, settings.shows_progress) as view:
        folder = fetch(console, name, settings.models_dir, view)
    show_result(console, settings, f"{folder.path}\n", model=describe(folder))
    return 0


@takes(MODELS_DIR, CACHE, JSON, TALK)
def rm(context: typer.Context, name: Name = None) -> int:
    """Remove a pulled model from this machine.

    \b
    hip models rm smollm2
    """
    from hipcli.engine.models import remove

    settings = Settings.of(context)
    if not name:
        raise UsageError("no model named", "hip models list shows them")
    remove(name, models_dir=settings.models_dir)
    context.obj.note(f"removed {name}")
    show_result(context.obj, settings, "", removed=[name])
    return 0


@takes(MODELS_DIR, CACHE, JSON, TALK)
def path(context: typer.Context, name: Name = None) -> int:
    """Print the folder of all models, or of one.

    \b
    hip models path smollm2
    """
    from hipcli.engine.models import resolve

    settings = Settings.of(context)
    folder = settings.models_dir
    if name is not None:
        folder = resolve(name, models_dir=settings.models_dir).path
    show_result(context.obj, settings, f"{folder}\n", path=folder)
    return 0


def describe(folder: "ModelFolder") -> dict[str, Any]:
    """A model as JSON."""
    from hipcli.engine.models.folders import source_of

    return {
        "name": folder.name,
        "revision": folder.revision,
        "format": folder.format,
        "bytes": num_bytes(folder.path),
        "source": source_of(folder),
        "path": folder.path,
    }


def num_bytes(path: Path) -> int:
    """Bytes on disk of a file, or of all files of a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size, revision = formatting.size(model["bytes"]), model["revision"] or "-"
    return model["name"], model["format"], size, revision, model["source"], str(model["path"])
