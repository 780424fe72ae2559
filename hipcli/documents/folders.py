"""Which files of a folder are read: git's list or a walk, then the rules of `ReadOptions`."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hipcli.documents import git_listing, plain_listing, skip_rules
from hipcli.documents.options import ReadOptions
from hipcli.documents.refusal import Refusal
from hipcli.engine.errors import UsageError

if TYPE_CHECKING:
    import pathspec


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file of a folder, or a folder in it that is left out as a whole.

    Args:
        relative: path from the folder, parts joined by "/"; surrogate escapes possible.
        refusal: why it is not read, None if it is to be read.
        link: it is a symbolic link (to a regular file within the folder).
    """

    relative: str
    refusal: Refusal | None = None
    link: bool = False


def list_folder(root: str, options: ReadOptions) -> list[FolderEntry]:
    """Files of a folder to read and to report, in byte order of their paths.

    What git ignores is neither; everything else is, with a reason if it is not to be read.

    Args:
        root: absolute path of the folder.

    Raises:
        Refusal: the folder itself cannot be listed.
        UsageError: a pattern of `options` is none.
    """
    rules = _Rules(root, options)
    listed = git_listing.list_files(root) if options.gitignore else None
    if listed is None:
        found = plain_listing.list_files(root, options.gitignore, rules.prunes)
    else:
        found = plain_listing.Found(files=listed, pruned=[])
    entries = {path: FolderEntry(path, refusal) for path, refusal in found.pruned}
    for path in found.files:
        entry = rules.entry(path)
        # Many files of one pruned folder come to the same entry.
        entries.setdefault(entry.relative, entry)
    ordered = sorted(entries.values(), key=lambda entry: os.fsencode(entry.relative))
    return [rules.resolve_link(entry, entries) if entry.link else entry for entry in ordered]


def compile_patterns(patterns: tuple[str, ...], flag: str) -> "pathspec.GitIgnoreSpec | None":
    """Patterns as in .gitignore, None when there are none.

    Raises:
        UsageError: one is no pattern.
    """
    if not patterns:
        return None
    # Slow to import, and most calls have no patterns.
    import pathspec

    try:
        return pathspec.GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise UsageError(f"{flag} has a pattern that cannot be used: {error}") from error


class _Rules:
    """The rules that decide about each path under one folder."""

    def __init__(self, root: str, options: ReadOptions) -> None:
        self.root = root
        self.real_root = os.path.realpath(root)
        self.options = options
        self.include = compile_patterns(options.include, "--include")
        self.exclude = compile_patterns(options.exclude, "--exclude")
        self._real_folders: dict[str, bool] = {}

    def prunes(self, relative: str) -> Refusal | None:
        """Why nothing of the folder `relative` is read, None if it is looked into."""
        name = relative.rpartition("/")[2]
        refusal = skip_rules.check_folder(name)
        if refusal is None and not self.options.hidden and name.startswith("."):
            refusal = Refusal("hidden", "hidden", "Read it with --hidden.", "skipped", "folder")
        return refusal

    def entry(self, relative: str) -> FolderEntry:
        """What to do about the file `relative`, as far as paths and metadata tell."""
        for folder in _parents(relative):
            refusal = self.prunes(folder)
            if refusal is not None:
                return FolderEntry(folder + "/", refusal)
        try:
            return FolderEntry(relative, link=self._check(relative))
        except Refusal as refusal:
            return FolderEntry(relative, refusal)

    def resolve_link(self, entry: FolderEntry, entries: dict[str, FolderEntry]) -> FolderEntry:
        """A link is read when it leads to a file of this folder that is not read anyway."""
        target = os.path.realpath(os.path.join(self.root, entry.relative))
        if not target.startswith(os.path.join(self.real_root, "")):
            refusal = Refusal("link_outside", "a link out of the folder", "", "skipped", "link")
            return FolderEntry(entry.relative, refusal)
        inside = os.path.relpath(target, self.real_root).replace(os.sep, "/")
        listed = entries.get(inside)
        if listed is not None and listed.refusal is None:
            refusal = Refusal("link", f"a link to {inside}", "", "skipped", "link")
            return FolderEntry(entry.relative, refusal)
        # What may not be read under its own name may not be read through a link either.
        own = self.entry(inside)
        if own.refusal is not None or own.link:
            refusal = own.refusal or Refusal("link", "a link to a link", "", "skipped", "link")
            return FolderEntry(entry.relative, refusal)
        return entry

    def _check(self, relative: str) -> bool:
        """Refuse a file by its path and metadata; true for a symbolic link.

        Raises:
            Refusal: it is not to be read.
        """
        if not self.options.hidden and relative.rpartition("/")[2].startswith("."):
            # A hidden secret is first of all a secret: --hidden would not help.
            skip_rules.check_path(relative)
            raise Refusal("hidden", "hidden", "Read it with --hidden.", "skipped")
        if self.exclude is not None and self.exclude.match_file(relative):
            raise Refusal("excluded", "left out by --exclude", "", "skipped")
        if self.include is not None and not self.include.match_file(relative):
            raise Refusal("not_included", "not among --include", "", "skipped")
        skip_rules.check_path(relative)
        if not self._is_real(relative.rpartition("/")[0]):
            raise Refusal("link_outside", "behind a link to a folder", "", "skipped", "link")
        return self._check_metadata(os.path.join(self.root, relative))

    def _is_real(self, folder: str) -> bool:
        """Whether no part of the way to `folder` is a link (git lists what was there before)."""
        if folder not in self._real_folders:
            real = os.path.realpath(os.path.join(self.root, folder))
            self._real_folders[folder] = real == os.path.normpath(
                os.path.join(self.real_root, folder)
            )
        return self._real_folders[folder]

    def _check_metadata(self, path: str) -> bool:
        try:
            info = os.lstat(path)
            link = stat.S_ISLNK(info.st_mode)
            if link:
                info = os.stat(path)
        except FileNotFoundError as error:
            reason = "not there (deleted, or a dangling link)"
            raise Refusal("missing", reason, "", "skipped") from error
        except OSError as error:
            raise Refusal("unreadable", f"cannot be read: {error.strerror}") from error
        if stat.S_ISDIR(info.st_mode):
            reason = "a link to a folder" if link else "a repository of its own"
            hint = "" if link else "Name the folder itself to read it."
            raise Refusal("folder", reason, hint, "skipped", "folder")
        if not stat.S_ISREG(info.st_mode):
            raise Refusal("not_regular", "a pipe, socket or device", "", "skipped")
        if info.st_size > self.options.max_file_bytes:
            raise Refusal(
                "too_large",
                f"{info.st_size:,} bytes, over the limit of {self.options.max_file_bytes:,}",
                "Raise --max-file-size, or name the file itself.",
                "skipped",
            )
        return link


def _parents(relative: str) -> Iterator[str]:
    """The folders on the way to a file, outermost first: "a/b/c" gives "a", "a/b"."""
    at = relative.find("/")
    while at >= 0:
        yield relative[:at]
        at = relative.find("/", at + 1)
