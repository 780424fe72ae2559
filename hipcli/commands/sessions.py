"""`hip sessions`: the saved contexts, by id, the start of an id, or name."""

import typer

from hipcli.commands import session_care
from hipcli.commands.session_table import (
    Key,
    Keys,
    as_page,
    as_table,
    describe,
    named_or_put_aside,
    session_store,
)
from hipcli.config.options import CACHE, JSON, OUTPUT, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.help_page import group
from hipcli.terminal.output import columns
from hipcli.terminal.output import show as show_result


def build() -> typer.Typer:
    """The group of commands `hip sessions`."""
    commands = {
        "list": (list_, "[OPTIONS]"),
        "show": (show, "[ID] [OPTIONS]"),
        "rm": (rm, "ID... [OPTIONS]"),
        "prune": (session_care.prune, "[ID...] [OPTIONS]"),
        "fork": (session_care.fork, "[ID] [OPTIONS]"),
        "verify": (session_care.verify, "[ID...] [OPTIONS]"),
        "path": (path, "[ID] [OPTIONS]"),
    }
    return group("List, check and remove saved sessions.", commands)


@takes(CACHE, JSON, OUTPUT, TALK)
def list_(context: typer.Context) -> int:
    """List the saved sessions, the latest first.

    \b
    hip sessions list
    hip sessions list --json
    """
    settings = Settings.of(context)
    store = session_store(settings)
    records, aside = store.list(unusable=True), store.put_aside()
    rows = [describe(record) for record in records]
    width = columns(context.obj, settings)
    text = as_table([*records, *aside], width) if records or aside else ""
    show_result(
        context.obj,
        settings,
        text,
        sessions=rows,
        quarantined=[describe(record) for record in aside],
        total_bytes=store.total_bytes(),
    )
    if not records:
        context.obj.note("no saved sessions")
    if aside:
        size = formatting.size(sum(record.num_bytes for record in aside))
        what = formatting.plural(len(aside), "damaged session")
        context.obj.note(f"{what} put aside ({size}); hip sessions prune removes them")
    return 0


@takes(CACHE, JSON, OUTPUT, TALK)
def show(context: typer.Context, key: Key = None) -> int:
    """Show one session: its documents, size and settings. Without ID, the latest.

    \b
    hip sessions show
    hip sessions show 3f9a
    """
    settings = Settings.of(context)
    record = named_or_put_aside(session_store(settings), key)
    described = describe(record)
    show_result(context.obj, settings, as_page(described), session=described)
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
    found = [named_or_put_aside(store, key) for key in keys]
    records = list({(record.id, record.path): record for record in found}.values())
    for record in records:
        store.remove(record)
        console.note(f"removed {record.id} ({formatting.size(record.num_bytes)})")
    show_result(console, settings, "", removed=[record.id for record in records])
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
    show_result(context.obj, settings, f"{folder}\n", path=folder)
    return 0
