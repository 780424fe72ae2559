"""What is in a folder where git cannot be asked: a walk that obeys .gitignore files itself."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import pathspec

from hipcli.documents import git_listing
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
    """The ignore patterns of one folder, which speak of paths relative to that folder.

    Args:
        base: what a path of the walk needs in front for that; "" for folders inside the walk.
        skip: how many characters it has too many in front; 0 for folders above the walk.
    """

    spec: pathspec.GitIgnoreSpec
    base: str
    skip: int


def list_files(root: str, gitignore: bool, prunes: Callable[[str], Refusal | None]) -> Found:
    """Walk a folder without following links.

    Args:
        root: absolute path of the folder.
        gitignore: obey .gitignore files, those above `root` too as far as the repository goes.
        prunes: why nothing of a folder is read, None to look into it.

    Raises:
        Refusal: `root` itself cannot be listed.
    """
    found = Found([], [])
    levels = _outer_levels(root) if gitignore else ()
    pending: list[tuple[str, tuple[_Level, ...]]] = [("", levels)]
    while pending:
        folder, levels = pending.pop()
        if gitignore:
            level = _level(os.path.join(root, folder), base="", skip=len(folder))
            levels = (*levels, level) if level else levels
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as error:
            problem = Refusal("unreadable", f"cannot be listed: {error.strerror}", kind="folder")
            if not folder:
                raise problem from error
            found.pruned.append((folder, problem))
            continue
        for entry in entries:
            relative = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or _ignored(relative, is_folder, levels):
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


def _ignored(relative: str, is_folder: bool, levels: tuple[_Level, ...]) -> bool:
    """Whether the innermost pattern that matches says to ignore a path."""
    for level in reversed(levels):
        path = level.base + relative[level.skip :]
        include = level.spec.check_file(path + "/" if is_folder else path).include
        if include is not None:
            return include
    return False


def _outer_levels(root: str) -> tuple[_Level, ...]:
    """Patterns of the repository that apply from above `root`, outermost first."""
    top = git_listing.find_top(root)
    if top is None:
        return ()
    real = os.path.realpath(root)
    levels = [_level(os.path.join(top, ".git", "info"), _base(top, real), 0, name="exclude")]
    folders = []
    while real != top:
        real = os.path.dirname(real)
        folders.append(real)
    levels += [_level(folder, _base(folder, os.path.realpath(root)), 0) for folder in folders[::-1]]
    outer = tuple(level for level in levels if level)
    # A folder that is ignored as a whole and named all the same is read by its own rules.
    return () if _ignored("", False, outer) else outer


def _base(folder: str, real: str) -> str:
    inner = os.path.relpath(real, folder).replace(os.sep, "/")
    return "" if inner == "." else inner + "/"


def _level(folder: str, base: str, skip: int, name: str = ".gitignore") -> _Level | None:
    """The patterns of one file, None when there are none."""
    path = os.path.join(folder, name)
    try:
        # git does not follow a link here either.
        if os.path.islink(path) or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            data = file.read(_MAX_IGNORE_BYTES)
    except OSError:
        return None
    lines = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).splitlines()
    patterns = []
    for line in lines:
        try:
            pathspec.GitIgnoreSpec.from_lines([line])
        except ValueError:
            # git passes over a pattern that is none, too.
            continue
        patterns.append(line)
    return _Level(pathspec.GitIgnoreSpec.from_lines(patterns), base, skip) if patterns else None
