"""What is in a folder where git cannot be asked: a walk that obeys .gitignore files itself."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from hipcli.documents import git_listing
from hipcli.documents.gitignore import IgnoreRules
from hipcli.documents.refusal import Refusal

_MAX_IGNORE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """Paths relative to the folder, parts joined by "/".

    Args:
        files: everything that is no folder, links to folders included.
        pruned: folders not looked into (with "/" at the end), and why.
    """

    files: list[str]
    pruned: list[tuple[str, Refusal]]


@dataclass(frozen=True, slots=True)
class _Level:
    """The ignore patterns of one folder on the way down.

    Args:
        skip: length of that folder's own path, which its patterns do not speak of.
    """

    rules: IgnoreRules
    skip: int


# Innermost last. Paths are relative to the repository's top, or the walk's folder without one.
_Levels = tuple[_Level, ...]


def list_files(root: str, gitignore: bool, prunes: Callable[[str], Refusal | None]) -> Found:
    """Walk a folder without following links.

    Args:
        root: absolute path of the folder.
        gitignore: obey .gitignore files, those above `root` too as far as the repository goes.
        prunes: why nothing of a folder (relative to `root`) is read, None to look into it.

    Raises:
        Refusal: `root` itself cannot be listed.
    """
    found = Found([], [])
    above, levels = _above(root) if gitignore else ("", ())
    pending: list[tuple[str, _Levels]] = [("", levels)]
    while pending:
        folder, levels = pending.pop()
        path = os.path.join(root, folder)
        if gitignore:
            levels += _level(os.path.join(path, ".gitignore"), len(above) + len(folder))
        try:
            entries = list(os.scandir(path))
        except OSError as error:
            problem = Refusal("unreadable", f"cannot be listed: {error.strerror}", kind="folder")
            if not folder:
                raise problem from error
            found.pruned.append((folder, problem))
            continue
        for entry in entries:
            relative = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or _ignored(above + relative, is_folder, levels):
                continue
            if not is_folder:
                found.files.append(relative)
                continue
            refusal = prunes(relative)
            if refusal is None:
                pending.append((relative + "/", levels))
            else:
                found.pruned.append((relative + "/", refusal))
    return found


def _ignored(path: str, is_folder: bool, levels: _Levels) -> bool:
    """Whether the innermost folder whose patterns speak of a path says to ignore it."""
    for level in reversed(levels):
        verdict = level.rules.verdict(path[level.skip :], is_folder)
        if verdict is not None:
            return verdict
    return False


def _above(root: str) -> tuple[str, _Levels]:
    """The way from the repository's top to `root` ("" or "a/b/"), and the patterns along it.

    A folder that is ignored as a whole, and named all the same, is read by its own patterns.
    """
    top = git_listing.find_top(root)
    if top is None:
        return "", ()
    inner = os.path.relpath(os.path.realpath(root), top).replace(os.sep, "/")
    levels = _level(os.path.join(top, ".git", "info", "exclude"), 0)
    way = ""
    for part in [] if inner == "." else inner.split("/"):
        levels += _level(os.path.join(top, way, ".gitignore"), len(way))
        if _ignored(way + part, True, levels):
            return "", ()
        way += part + "/"
    return way, levels


def _level(path: str, skip: int) -> _Levels:
    """The patterns of a file that may not be there."""
    try:
        # git does not follow a link here either, and a pipe would never end.
        if os.path.islink(path) or not os.path.isfile(path):
            return ()
        with open(path, "rb") as file:
            data = file.read(_MAX_IGNORE_BYTES)
    except OSError:
        return ()
    rules = IgnoreRules(os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")))
    return (_Level(rules, skip),) if rules else ()
