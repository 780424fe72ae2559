"""`hip sessions`: the saved contexts, by id, the start of an id, or name."""

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli import formatting
from hipcli.console import Console
from hipcli.engine.errors import UsageError
from hipcli.help_page import HelpfulCommand, HelpfulGroup
from hipcli.options import CACHE, JSON, OUTPUT, TALK
from hipcli.output import SCHEMA_VERSION, json_line, open_sink, write_path
from hipcli.settings import Settings, takes

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord, SessionStore

Keys = Annotated[list[str] | None, typer.Argument(metavar="ID")]
Key = Annotated[str | None, typer.Argument(metavar="ID")]


def build() -> typer.Typer:
    """The group of commands `hip sessions`."""
    app = typer.Typer(
        cls=HelpfulGroup, rich_markup_mode=None, help="List, show and remove saved sessions."
    )
    app.callback(invoke_without_command=True)(_group)
    app.command("list", cls=HelpfulCommand)(list_)
    app.command("show", cls=HelpfulCommand, options_metavar="[ID] [OPTIONS]")(show)
    app.command("rm", cls=HelpfulCommand, options_metavar="ID... [OPTIONS]")(rm)
    app.command("path", cls=HelpfulCommand, options_metavar="[ID] [OPTIONS]")(path)
    return app


def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.fail("no command given: list, show, rm or path")


@takes(CACHE, JSON, OUTPUT, TALK)
def list_(context: typer.Context) -> int:
    """List the saved sessions, the latest first.

    \b
    hip sessions list
    hip sessions list --json
    """
    settings = Settings.of(context)
    records = _store(settings).list()
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "json":
            rows = [describe(record) for record in records]
            sink.write_json({"schema_version": SCHEMA_VERSION, "sessions": rows})
        elif records:
            sink.write(_table(records))
        else:
            context.obj.note("no saved sessions")
    return 0


@takes(CACHE, JSON, OUTPUT, TALK)
def show(context: typer.Context, key: Key = None) -> int:
    """Show one session: its documents, size and settings. Without ID, the latest.

    \b
    hip sessions show
    hip sessions show 3f9a
    """
    settings = Settings.of(context)
    record = _store(settings).find(key)
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "json":
            sink.write_json({"schema_version": SCHEMA_VERSION, "session": describe(record)})
        else:
            sink.write(_page(describe(record)))
    return 0


@takes(CACHE, JSON, TALK)
def rm(context: typer.Context, keys: Keys = None) -> int:
    """Remove sessions and what they hold on disk.

    \b
    hip sessions rm 3f9a
    hip sessions rm novel report
    """
    settings = Settings.of(context)
    console: Console = context.obj
    if not keys:
        raise UsageError("no session named", "hip sessions list shows their ids")
    store = _store(settings)
    # All are looked up before the first is removed: a typo removes nothing.
    records = [store.find(key) for key in keys]
    for record in records:
        store.remove(record)
        console.note(f"removed {record.id} ({formatting.size(record.num_bytes)})")
    if settings.output_format == "json":
        removed = [record.id for record in records]
        console.write_utf8(json_line({"schema_version": SCHEMA_VERSION, "removed": removed}))
    return 0


@takes(CACHE, JSON, TALK)
def path(context: typer.Context, key: Key = None) -> int:
    """Print the folder of all sessions, or of one.

    \b
    hip sessions path
    du -sh "$(hip sessions path)"
    """
    settings = Settings.of(context)
    folder = _store(settings).root if key is None else _store(settings).find(key).path
    write_path(context.obj, settings.output_format, folder)
    return 0


def describe(record: "SessionRecord") -> dict[str, Any]:
    """A session as JSON."""
    return {
        "id": record.id,
        "name": record.name,
        "created": record.created,
        "used": _time(record.used_s),
        "complete": record.complete,
        "context_tokens": record.context_tokens,
        "bytes": record.num_bytes,
        "model": record.model,
        "method": record.method,
        "kept_ratio": record.kept_ratio,
        "inputs": [dict(entry) for entry in record.inputs],
        "path": record.path,
    }


def _store(settings: Settings) -> "SessionStore":
    from hipcli.engine.sessions import SessionStore

    return SessionStore(settings.cache_root)


def _time(seconds: float) -> str:
    """Seconds since the epoch as a manifest writes its times."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _table(records: Sequence["SessionRecord"]) -> str:
    header = ("ID", "NAME", "USED", "TOKENS", "SIZE", "STATE", "INPUTS")
    rows = [
        (
            record.id,
            record.name or "-",
            _time(record.used_s),
            formatting.count(record.context_tokens),
            formatting.size(record.num_bytes),
            "complete" if record.complete else "partial",
            ", ".join(entry["name"] for entry in record.inputs),
        )
        for record in records
    ]
    return formatting.table(header, rows, right=(3, 4))


def _page(described: dict[str, Any]) -> str:
    lines = [f"{key}: {value}" for key, value in described.items() if key != "inputs"]
    lines += [f"input: {entry['name']}  {entry['sha256']}" for entry in described["inputs"]]
    return "".join(formatting.one_line(line) + "\n" for line in lines)
