"""What the user typed as a list of inputs, each once, before any is read."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hipcli.documents import folders
from hipcli.documents.naming import joined, printable_name
from hipcli.documents.options import ReadOptions
from hipcli.documents.refusal import Refusal
from hipcli.engine.errors import InputError, UsageError

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Item:
    """One input before it is read.

    Args:
        name: as people and the model see it.
        path: absolute; "-" for standard input.
        relative: path from the folder it was found in, None for what the user named.
        refusal: why it is not to be read, None if it is.
    """

    name: str
    path: str
    relative: str | None = None
    refusal: Refusal | None = None


def expand(sources: Sequence[str], options: ReadOptions) -> list[Item]:
    """Every input once, in order; a file that is named is not read as part of a folder too.

    Raises:
        InputError: a source is missing, or cannot be opened; nothing is read then.
        InputError: folders hold more files or bytes than the limits.
        UsageError: no source, "-" twice or without standard input, a pattern that is none.
    """
    _check_usage(sources, options)
    items = list(_items(sources, options))
    _check_there([item for item in items if item.relative is None])
    _check_totals([item for item in items if item.relative is not None], options)
    return items


def folder_names(source: str, path: str, options: ReadOptions) -> list[str]:
    """Names of the files that reading a folder would read now, as people see them.

    Args:
        source: the folder as it was typed.
        path: where it is, absolute.

    Raises:
        UsageError: a pattern of `options` is none.
    """
    return [item.name for item in _folder_items(source, path, options) if item.refusal is None]


def _check_usage(sources: Sequence[str], options: ReadOptions) -> None:
    if not sources:
        raise UsageError("no source given", "Name a file or folder, or - for standard input.")
    if list(sources).count(STDIN) > 1:
        raise UsageError("- (standard input) can be read only once")
    if STDIN in sources and options.stdin is None:
        raise UsageError("- was given, but standard input is not available")
    for source in sources:
        try:
            usable = bool(source) and b"\0" not in os.fsencode(source)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            # An empty name would otherwise mean the current folder.
            raise InputError(f"{source!r} is no name of a file or folder")
    folders.compile_patterns(options.include, "--include")
    folders.compile_patterns(options.exclude, "--exclude")


def _items(sources: Sequence[str], options: ReadOptions) -> Iterator[Item]:
    named = {os.path.realpath(source) for source in sources if source != STDIN}
    seen: set[str] = set()
    for source in sources:
        if source == STDIN:
            yield Item("stdin", STDIN)
            continue
        path = os.path.abspath(source)
        real = os.path.realpath(path)
        if real in seen:
            refusal = Refusal("repeated", "named before", status="skipped")
            yield Item(_shown(source), path, refusal=refusal)
        elif os.path.isdir(path):
            yield from _new_items(_folder_items(source, path, options), named, seen)
        else:
            yield Item(_shown(source), path)
        seen.add(real)


def _new_items(items: Iterator[Item], named: set[str], seen: set[str]) -> Iterator[Item]:
    """The items of a folder that are neither read nor reported elsewhere."""
    for item in items:
        # A link that is not read is its own thing, whatever it leads to.
        key = os.path.realpath(item.path) if item.refusal is None else item.path
        if item.relative is None or not (key in seen or key in named):
            seen.add(key)
            yield item


def _folder_items(source: str, path: str, options: ReadOptions) -> Iterator[Item]:
    try:
        entries = folders.list_folder(path, options)
    except Refusal as refusal:
        yield Item(_shown(source), path, refusal=refusal)
        return
    prefix = "" if os.path.normpath(source) == "." else os.path.join(os.path.normpath(source), "")
    for entry in entries:
        file = os.path.join(path, entry.relative)
        if entry.link and entry.refusal is None:
            # A link was resolved when it was judged; what is read is what was judged.
            file = os.path.realpath(file)
        yield Item(printable_name(prefix + entry.relative), file, entry.relative, entry.refusal)
    if not entries:
        empty = Refusal("empty_folder", "nothing in it to read", "", "skipped", "folder")
        yield Item(_shown(source), path, refusal=empty)


def _shown(source: str) -> str:
    # "./a.md" and "a.md" are one file to the user, and should be one to a saved session.
    return printable_name(os.path.normpath(source))


def _check_there(named: list[Item]) -> None:
    """Raise for all sources at once that are not there or cannot be opened."""
    problems = []
    for item in named:
        problem = None if item.path == STDIN else _problem(item)
        if problem is not None:
            problems.append(f"{item.name}: {problem}")
    if problems:
        hint = "Nothing was read. Check the path; quote a name that has blanks in it."
        raise InputError(joined(problems), hint)


def _check_totals(found: list[Item], options: ReadOptions) -> None:
    """Raise when folders hold more than anybody means to read, with both totals."""
    to_read = [item for item in found if item.refusal is None]
    total = sum(_num_bytes(item.path) for item in to_read)
    if len(to_read) <= options.max_files and total <= options.max_total_bytes:
        return
    raise InputError(
        f"{len(to_read):,} files with {total:,} bytes are to be read; the limits are "
        f"{options.max_files:,} files and {options.max_total_bytes:,} bytes",
        "Name a folder further in, choose with --include and --exclude, or raise --max-files or "
        "--max-total-size. Nothing was read.",
    )


def _num_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _problem(item: Item) -> str | None:
    """Why a source cannot be opened, None if it can as far as one can see."""
    if item.refusal is not None:
        return item.refusal.reason if item.refusal.code == "unreadable" else None
    try:
        found = os.stat(item.path)
    except FileNotFoundError:
        return "no such file or folder"
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISREG(found.st_mode) and not os.access(item.path, os.R_OK):
        return "permission denied"
    return None
