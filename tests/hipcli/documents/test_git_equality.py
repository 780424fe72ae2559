"""`hip inspect` of a repository is what git lists, less what is reported as left out."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.documents import ReadOptions, printable_name, read_sources
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
    return {printable_name(os.fsdecode(name).rstrip("/")) for name in listed.split(b"\0") if name}


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
def test_a_work_tree_of_a_bare_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = put(
        tmp_path / "first", {"a.c": "int a;\n", ".gitignore": "*.o\n", "sub/b.c": "int b;\n"}
    )
    git(first, "init", "-q")
    git(first, "add", ".")
    git(first, "commit", "-qm", "first")
    git(first, "clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    git(tmp_path / "bare.git", "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
    put(tmp_path / "bare.git", {"info/exclude": "*.tmp\n"})
    put(tmp_path / "tree", {"b.o": "x", "c.tmp": "x", "d.c": "int d;\n"})
    assert compare(tmp_path / "tree", monkeypatch) == {".gitignore": "hidden"}
    compare(tmp_path / "tree" / "sub", monkeypatch)
    # A file called .git that leads nowhere makes no repository: the rules on the way still count.
    lost = put(tmp_path / "lost", {".git": "gitdir: /nowhere\n", ".gitignore": "*.o\n"})
    put(lost, {"a.o": "x", "b.c": "x\n"})
    monkeypatch.chdir(lost)
    assert [entry.name for entry in read_sources(["."], ReadOptions()).documents] == ["b.c"]


NAMES = [
    "a",
    "b.txt",
    "B.txt",
    "c.log",
    "Ümlaut.md",
    "with blank.py",
    "x[1].c",
    "-dash",
    "tab\tname",
]
NAMES += ["new\nline.txt", os.fsdecode(b"latin\xe9.txt"), "*star", "end.", "!bang", "#hash.txt"]
FOLDERS = ["", "src/", "src/deep/", "out/", "Out/", "docs/", "src/out/", "docs/é/"]
PATTERNS = [
    "*.log",
    "out/",
    "/out",
    "src/*",
    "!src/deep",
    "**/deep/*",
    "*.txt",
    "!b.txt",
    "docs/**",
]
PATTERNS += [
    "?",
    "[!a]",
    "\\!bang",
    "\\#hash.txt",
    "# comment",
    "",
    "  ",
    "*.txt ",
    "/src/out/a",
    "!*/",
]
PATTERNS += ["latin*", "x\\[1\\].c", "**", "!**/b.txt", "*/", "with\\ blank.py", "B.TXT", "é/"]


def make_repository(place: Path, seed: int) -> None:
    """Files, links and rules by chance; some files are added, some of them deleted again."""
    chance = random.Random(seed)
    files = [folder + name for folder in FOLDERS for name in NAMES if chance.random() < 0.35]
    put(place, dict.fromkeys(files, "text\n"))
    git(place, "init", "-q")
    for folder in FOLDERS:
        if chance.random() < 0.4 and (place / folder).is_dir():
            lines = chance.choices(PATTERNS, k=chance.randint(1, 5))
            put(place, {f"{folder}.gitignore": chance.choice(["\n", "\r\n"]).join(lines)})
    put(place, {".git/info/exclude": "\n".join(chance.choices(PATTERNS, k=2)) + "\n"})
    added = chance.sample(files, len(files) // 3)
    for name in added:
        git(place, "--literal-pathspecs", "add", "-f", "--", name)
    for name in added[:: chance.randint(3, 9)]:
        (place / name).unlink()
    present = [name for name in files if (place / name).exists()]
    targets = [*chance.sample(present, 3), "src", "nowhere", "/etc/passwd", ".", ".git/config"]
    for number, target in enumerate(targets):
        link = place / chance.choice(["", "links/"]) / f"link{number}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target if target.startswith("/") else place / target)
    if chance.random() < 0.5:
        inner = put(place / "inner", {"in.txt": "x\n"})
        git(inner, "init", "-q")


@needs_git
@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems do not allow")
@pytest.mark.parametrize("seed", range(16))
def test_generated_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    excludes = "\n".join(random.Random(-seed - 1).choices(PATTERNS, k=2))
    config = (
        f"[core]\nexcludesFile = {tmp_path}/excludes\nignoreCase = {str(seed % 4 == 3).lower()}\n"
    )
    put(tmp_path, {"excludes": excludes, "config": config})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    place = tmp_path / "place"
    make_repository(place, seed)
    compare(place, monkeypatch)
    for folder in ("src", "docs"):
        # A folder that is ignored as a whole is read by its own rules when it is named.
        if (place / folder).is_dir() and git_lists(place / folder):
            compare(place / folder, monkeypatch)


@needs_git
@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout")
def test_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    compare(REPOSITORY, monkeypatch)
