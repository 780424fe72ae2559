"""`hip inspect` of a repository is what git lists, less what is reported as left out."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hipcli.documents import ReadOptions, read_sources
from tests.hipcli.documents.test_folders import git, put

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")
REPOSITORY = Path(__file__).parents[3]
FILES: dict[str, str | bytes] = {
    ".gitignore": "build/\n*.log\n!keep.log\n/only-top.txt\nsub/*\n!sub/kept/\n",
    "a.py": "x\n",
    "b.log": "x\n",
    "keep.log": "x\n",
    "only-top.txt": "x\n",
    "deep/only-top.txt": "x\n",
    "build/out.txt": "x\n",
    "deep/build/out.txt": "x\n",
    "sub/gone.txt": "x\n",
    "sub/kept/here.txt": "x\n",
    "deep/.gitignore": "!b.log\nown.txt\n",
    "deep/b.log": "x\n",
    "deep/own.txt": "x\n",
    "name with blanks é.txt": "x\n",
    "scratch.tmp": "x\n",
    "private.txt": "x\n",
    "image.png": b"\x89PNG\r\n\0\0",
    ".env": "x\n",
    "empty.txt": "",
}


def git_lists(folder: Path) -> set[str]:
    command = ["git", "-C", str(folder), "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    return {os.fsdecode(name).rstrip("/") for name in listed.split(b"\0") if name}


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Checks that all of git's files are read or reported; returns those reported, and why."""
    monkeypatch.chdir(folder)
    inputs = read_sources(["."], ReadOptions()).inputs
    read = {entry.name for entry in inputs if entry.text}
    reported = {entry.name: entry.code for entry in inputs if not entry.text}
    listed = git_lists(folder)
    folders = tuple(name for name in reported if name.endswith("/"))
    assert read <= listed
    assert {name for name in listed - read if not name.startswith(folders)} == {
        name for name in reported if name not in folders
    }
    return reported


@needs_git
def test_rules_of_all_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"[core]\nexcludesFile = {tmp_path}/excludes\n"
    put(tmp_path, {"excludes": "*.tmp\n", "config": config})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    place = put(tmp_path / "place", FILES)
    git(place, "init", "-q")
    put(place, {".git/info/exclude": "private.txt\n"})
    git(place, "add", "-f", "build/out.txt")
    reported = compare(place, monkeypatch)
    assert reported == {
        ".gitignore": "hidden",
        "deep/.gitignore": "hidden",
        ".env": "secret",
        "image.png": "binary",
        "empty.txt": "empty",
    }
    names = {entry.name for entry in read_sources(["."], ReadOptions()).documents}
    assert names == {
        "a.py",
        "build/out.txt",
        "deep/b.log",
        "deep/only-top.txt",
        "keep.log",
        "name with blanks é.txt",
        "sub/kept/here.txt",
    }


@needs_git
def test_submodules_and_linked_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = put(tmp_path / "inner", {"lib.c": "int x;\n"})
    outer = put(tmp_path / "outer", {"main.c": "int y;\n", ".gitignore": "*.o\n", "main.o": "x"})
    for place in (inner, outer):
        git(place, "init", "-q")
        git(place, "add", ".")
        git(place, "commit", "-qm", "first")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "lib")
    git(outer, "commit", "-qm", "second")
    put(outer, {"lib/new.c": "int z;\n", "own/readme.txt": "x\n"})
    git(outer / "own", "init", "-q")
    reported = compare(outer, monkeypatch)
    assert reported["lib"] == "folder" and reported["own"] == "folder"
    # A submodule, whose .git is a file, is a repository of its own when it is named.
    assert compare(outer / "lib", monkeypatch) == {}
    git(outer, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    put(tmp_path / "tree", {"side.o": "x", "side.c": "int s;\n"})
    assert (tmp_path / "tree" / ".git").is_file()
    compare(tmp_path / "tree", monkeypatch)
    names = {entry.name for entry in read_sources(["."], ReadOptions()).documents}
    assert names == {"main.c", "side.c"}


@needs_git
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(REPOSITORY, monkeypatch)
