"""`hip sessions`: the saved contexts, by id, the start of an id, or name."""

import typer

from hipcli import formatting
from hipcli.commands import session_care
from hipcli.commands.session_table import (
    Key,
    Keys,
    as_page,
    as_table,
    describe,
    named_sessions,
    session_store,
)
from hipcli.console import Console
from hipcli.engine.errors import UsageError
from hipcli.help_page import HelpfulCommand, HelpfulGroup
from hipcli.options import CACHE, JSON, OUTPUT, TALK
from hipcli.output import SCHEMA_VERSION, json_line, open_sink, write_path
from hipcli.settings import Settings, takes


def build() -> typer.Typer:
    """The group of commands `hip sessions`."""
    app = typer.Typer(
        cls=HelpfulGroup, rich_markup_mode=None, help="List, check and remove saved sessions."
    )
    app.callback(invoke_without_command=True)(_group)
    app.command("list", cls=HelpfulCommand)(list_)
    app.command("show", cls=HelpfulCommand, options_metavar="[ID] [OPTIONS]")(show)
    app.command("rm", cls=HelpfulCommand, options_metavar="ID... [OPTIONS]")(rm)
    app.command("prune", cls=HelpfulCommand)(session_care.prune)
    app.command("fork", cls=HelpfulCommand, options_metavar="[ID] [OPTIONS]")(session_care.fork)
    app.command("verify", cls=HelpfulCommand, options_metavar="[ID...] [OPTIONS]")(
        session_care.verify
    )
    app.command("path", cls=HelpfulCommand, options_metavar="[ID] [OPTIONS]")(path)
    return app


def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        context.fail("no command given: list, show, rm, prune, fork, verify or path")


@takes(CACHE, JSON, OUTPUT, TALK)
def list_(context: typer.Context) -> int:
    """List the saved sessions, the latest first.

    \b
    hip sessions list
    hip sessions list --json
    """
    settings = Settings.of(context)
    store = session_store(settings)
    records = store.list(unusable=True)
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "json":
            rows = [describe(record) for record in records]
            total = store.total_bytes()
            sink.write_json(
                {"schema_version": SCHEMA_VERSION, "sessions": rows, "total_bytes": total}
            )
        elif records:
            sink.write(as_table(records))
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
    record = session_store(settings).find(key, unusable=True)
    with open_sink(context.obj, settings.values["output"]) as sink:
        if settings.output_format == "json":
            sink.write_json({"schema_version": SCHEMA_VERSION, "session": describe(record)})
        else:
            sink.write(as_page(describe(record)))
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
    store = session_store(settings)
    # All are looked up before the first is removed: a typo removes nothing.
    records = list({record.id: record for record in named_sessions(store, keys)}.values())
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
    store = session_store(settings)
    folder = store.root if key is None else store.find(key, unusable=True).path
    write_path(context.obj, settings.output_format, folder)
    return 0
