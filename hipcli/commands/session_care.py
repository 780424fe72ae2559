"""`hip sessions prune`, `fork` and `verify`: what keeps saved sessions few and sound."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hipcli.commands.session_table import Key, Keys, describe, named_sessions, session_store
from hipcli.config.options import CACHE, JSON, TALK
from hipcli.config.parameters import takes
from hipcli.config.settings import Settings
from hipcli.config.words import parse_keep, parse_size
from hipcli.engine.errors import DamagedSessionError, SessionError, UsageError
from hipcli.exit_codes import ExitCode
from hipcli.terminal import formatting
from hipcli.terminal.console import Console
from hipcli.terminal.output import show

if TYPE_CHECKING:
    from hipcli.engine.sessions import SessionRecord, SessionStore


@takes(CACHE, JSON, TALK)
def prune(
    context: typer.Context,
    keys: Keys = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="RATIO",
            help="Of the sessions named, keep this part of the pages: 0.25 is a quarter.",
        ),
    ] = "",
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="Keep at most this, as in 10GiB.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> int:
    """Remove what is of no use any more, or a part of the sessions named.

    \b
    hip sessions prune
    hip sessions prune --max-size 10GiB --dry-run
    hip sessions prune novel --keep 0.25

    Without --max-size only what nobody can read is removed; with it the longest unused sessions
    too. --keep leaves sinks, window, and the ratio of the pages between them that stand out most;
    answers of a pruned session say so (kept_ratio).
    """
    from hipcli.engine.sessions.room import surplus

    settings = Settings.of(context)
    console: Console = context.obj
    store = session_store(settings)
    if keys or keep:
        if not keys or not keep or max_size:
            raise UsageError(
                "a session is pruned by its ID and --keep", "hip sessions prune ID --keep 0.25"
            )
        return _prune_pages(console, settings, store, keys, keep, dry_run)
    store.sweep()
    limit = parse_size(max_size, "--max-size") if max_size else None
    removed: list[dict[str, Any]] = []
    for path, num_bytes in surplus(store, limit):
        if not dry_run:
            store.disk.remove(path)
        row = {"id": path.name[:12], "bytes": num_bytes, "path": path}
        removed.append(row)
        told = "would remove" if dry_run else "removed"
        console.note(f"{told} {row['id']} ({formatting.size(num_bytes)})")
    show(console, settings, "", removed=removed, dry_run=dry_run)
    if not removed:
        console.note("nothing to remove")
    return 0


def _prune_pages(
    console: Console,
    settings: Settings,
    store: "SessionStore",
    keys: Sequence[str],
    keep: str,
    dry_run: bool,
) -> int:
    """Put pruned sessions in the place of those named."""
    from hipcli.engine.sessions.pruning import prune as prune_pages

    ratio = parse_keep(keep)
    if ratio is None or ratio == 1:
        raise UsageError(f"--keep {keep} leaves out nothing", "give a ratio such as 0.25")
    rows: list[dict[str, Any]] = []
    for record in named_sessions(store, keys):
        try:
            pruned = None if dry_run else prune_pages(store, record, ratio)
        except OSError as error:
            raise SessionError(
                f"session {record.id} cannot be pruned: {error}", "it stays as it was"
            ) from None
        if dry_run:
            console.note(f"would prune {record.id} ({formatting.size(record.num_bytes)})")
        elif pruned is None:
            console.note(f"{record.id} has nothing to leave out at --keep {keep}")
        else:
            kept, size = pruned.kept_ratio, formatting.size(pruned.num_bytes)
            console.note(f"{record.id} is {pruned.id} now: {kept:.1%} of the pages, {size}")
            rows.append({"id": record.id, "session": describe(pruned)})
    show(console, settings, "", pruned=rows, dry_run=dry_run)
    return 0


@takes(CACHE, JSON, TALK)
def fork(
    context: typer.Context,
    key: Key = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name the branch.")] = "",
) -> int:
    """Branch a session: another one over the same pages, which are not copied.

    \b
    hip sessions fork novel --name novel-2
    """
    from hipcli.engine.sessions.fork import fork as branch

    settings = Settings.of(context)
    console: Console = context.obj
    store = session_store(settings)
    parent = store.find(key)
    had_it = [record.id for record in store.list() if name and record.name == name]
    try:
        record = branch(store, parent, name)
    except OSError as error:
        raise SessionError(
            f"the branch cannot be written: {error}", "hip doctor shows what the cache allows"
        ) from None
    if had_it:
        console.warn(f"the name {name!r} is the branch's now; {', '.join(had_it)} had it")
    show(console, settings, f"{record.id}\n", parent=parent.id, session=describe(record))
    return 0


@takes(CACHE, JSON, TALK)
def verify(context: typer.Context, keys: Keys = None) -> int:
    """Read sessions whole and compare them with their checksums. Without ID, all of them.

    \b
    hip sessions verify
    hip sessions verify 3f9a novel

    A damaged session is put aside; the next question about its documents reads them again. Exit
    code 0: all are sound.
    """
    settings = Settings.of(context)
    store = session_store(settings)
    records = named_sessions(store, keys) if keys else store.list(unusable=True)
    rows = [_verified(store, record) for record in records]
    lines = [f"{row['id']}  {row['status']}  {row['reason']}" for row in rows]
    text = "".join(formatting.one_line(line) + "\n" for line in lines)
    show(context.obj, settings, text, sessions=rows)
    bad = any(row["status"] == "damaged" for row in rows)
    return int(ExitCode.FAILURE if bad else ExitCode.OK)


def _verified(store: "SessionStore", record: "SessionRecord") -> dict[str, Any]:
    """One row of `verify`: status is ok, busy (being built), newer, or damaged."""
    status, reason, aside = "ok", "", False
    builder = store.builder(record.key)
    try:
        if builder:
            status, reason = "busy", f"{builder} is building it"
        else:
            store.verify(record)
    except DamagedSessionError as error:
        aside = store.quarantine(record.path)
        done = "it was put aside" if aside else "it could not be put aside"
        status, reason = "damaged", f"{error.message}; {done}"
    except SessionError as error:
        status, reason = "newer", error.message
    return {
        "id": record.id,
        "name": record.name,
        "status": status,
        "reason": reason,
        "quarantined": aside,
    }
