"""Patterns and walks against git itself."""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from hipcli.documents import git_listing, plain_listing
from hipcli.documents.gitignore import IgnoreRules

PIECES = [
    *"abc*?[]!-/\\ .^#",
    "**",
    "[a-c]",
    "[!a]",
    "[[:alpha:]]",
    "[[:bogus:]]",
    "[]a]",
    "[^b]",
    "/**/",
    "**/",
    "[\\]]",
    "[c-a]",
]
NAMES = ["a", "b", "foo", "bar", "build", "x.txt", "y.log", "keep.log", "z.py", "a b", "[q]", "é"]
LINES = [
    *("*.log", "!keep.log", "build/", "/build", "foo/**", "!foo/keep.log", "**/bar", "a/**/b"),
    *("!*.txt", "/a/*", "!/a/foo", "foo", "!foo", "a b", "\\[q\\]", "[q]", "é", "**/build/**"),
    *("*", "!*/", "!*.py", "b/**/x.txt", "?.py", "[a-y].*", "# c", "", "  ", "a b/ ", "**", "/**"),
    *("*/foo", "foo/*/bar", "bar/**/", "a//b", "\\!foo", "*.txt\r"),
]


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    # check-ignore exits with 1 when nothing is ignored.
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def ignored(rules: IgnoreRules, path: str) -> bool:
    """As a walk would have it: a path, or a folder on the way to it, is ignored."""
    parts = path.split("/")
    return any(
        rules.verdict("/".join(parts[:depth]), depth < len(parts))
        for depth in range(1, len(parts) + 1)
    )


def test_single_patterns_match_as_in_git(tmp_path: Path) -> None:
    choose = random.Random(7)
    git(tmp_path, "init", "-q")
    part = ["a", "b", "c", ".", " ", "-", "]", "[", "!", "\\", "1", "^", "#", "A"]
    names = {"".join(choose.choices(part, k=choose.randint(1, 3))) for _ in range(200)}
    usable = sorted(name for name in names if name.strip(".") and name.strip())
    paths = ["/".join(choose.choices(usable, k=choose.randint(1, 3))) for _ in range(80)]
    stdin = "\0".join(paths).encode()
    for _ in range(300):
        pattern = "".join(choose.choices(PIECES, k=choose.randint(1, 6)))
        (tmp_path / ".gitignore").write_text(pattern + "\n")
        check = ("-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index")
        output = git(tmp_path, *check, "-z", "--stdin", stdin=stdin)
        expected = set(output.decode().split("\0")) - {""}
        rules = IgnoreRules(pattern + "\n")
        assert {path for path in paths if ignored(rules, path)} == expected, pattern


def grow(folder: Path, choose: random.Random) -> None:
    """A random tree with .gitignore files in it."""
    folders = [folder]
    for _ in range(8):
        inner = choose.choice(folders) / choose.choice(NAMES)
        if not inner.exists():
            inner.mkdir()
            folders.append(inner)
    for inner in folders:
        for name in choose.sample(NAMES, 5):
            if not (inner / name).exists():
                (inner / name).write_text("x")
        if inner == folder or choose.random() < 0.5:
            lines = choose.sample(LINES, choose.randint(1, 5))
            (inner / ".gitignore").write_bytes("\n".join(lines).encode() + b"\n")


@pytest.mark.parametrize("seed", range(12))
def test_walk_finds_what_git_lists(tmp_path: Path, seed: int) -> None:
    git(tmp_path, "init", "-q")
    grow(tmp_path, random.Random(seed))
    listing = ("ls-files", "-co", "--exclude-standard", "-z")
    expected = set(os.fsdecode(git(tmp_path, *listing)).split("\0")) - {""}
    assert set(git_listing.list_files(str(tmp_path)) or []) == expected
    # A walk does not know what the user ignores everywhere.
    output = git(tmp_path, "-c", "core.excludesFile=/dev/null", *listing)
    expected = set(os.fsdecode(output).split("\0")) - {""}
    found = plain_listing.list_files(str(tmp_path), True, lambda folder: None)
    assert set(found.files) == expected
    # The rules above a folder hold in it, as long as it is not ignored itself.
    for inner in sorted({path.partition("/")[0] for path in expected if "/" in path}):
        below = {path[len(inner) + 1 :] for path in expected if path.startswith(inner + "/")}
        walked = plain_listing.list_files(str(tmp_path / inner), True, lambda folder: None)
        assert set(walked.files) == below


def test_exclude_file_of_the_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git" / "info" / "exclude").write_text("*.tmp\n")
    for name in ("a.tmp", "b.txt"):
        (tmp_path / name).write_text("x")
    assert git_listing.list_files(str(tmp_path)) == ["b.txt"]
    found = plain_listing.list_files(str(tmp_path), True, lambda folder: None)
    assert found.files == ["b.txt"]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 25 + "b", "a" * 250),
        ("**/a/" * 20 + "b", "a/" * 1000 + "c"),
        ("**/*a*a/" * 20 + "b", "aaaa/" * 400 + "c"),
    ],
)
def test_many_stars_take_no_time(pattern: str, path: str) -> None:
    start = time.monotonic()
    assert IgnoreRules(pattern).verdict(path, False) is None
    assert time.monotonic() - start < 1
