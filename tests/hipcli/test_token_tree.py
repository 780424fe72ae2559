"""`hip inspect --tree`: where tokens go."""

from pathlib import Path

import pytest

from hipcli.terminal import token_tree
from tests.hipcli.fakes import run_hip


def row(path: str, tokens: int | None) -> dict[str, object]:
    return {"path": path, "tokens": tokens}


def test_folders_add_up_and_the_largest_come_first() -> None:
    rows = [row("a.txt", 5), row("src/x/y/b.py", 80), row("src/x/y/c.py", 10), row("gone", None)]
    root = token_tree.build([*rows, row("docs/d.md", 5)], "tokens")
    assert token_tree.render(root, "tokens").splitlines() == [
        "TOKENS  SHARE  PATH",
        "   100  100%   total  (4 files)",
        "    90   90%   ├── src/x/y/  (2 files)",
        "    80   80%   │   ├── b.py",
        "    10   10%   │   └── c.py",
        "     5    5%   ├── a.txt",
        "     5    5%   └── docs/  (1 file)",
        "     5    5%       └── d.md",
    ]
    record = token_tree.as_record(root, "tokens")
    assert (record["tokens"], record["files"], len(record["children"])) == (100, 4, 3)


def test_many_small_files_are_one_line() -> None:
    root = token_tree.build([row(f"{i:02d}.txt", 100 - i) for i in range(30)], "tokens")
    lines = token_tree.render(root, "tokens").splitlines()
    assert len(lines) == 2 + 13
    assert lines[-1].endswith("└── (smaller ones)  (18 files)")
    assert len(token_tree.as_record(root, "tokens")["children"]) == 30


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("src").mkdir()
    Path("src/a.txt").write_text("one two three\n")
    Path("b.txt").write_text("four\n")
    outcome = run_hip("inspect", ".", "--tree", "--count", "words")
    assert outcome.out.splitlines()[1:3] == [
        "    4  100%   total  (2 files)",
        "    3   75%   ├── src/  (1 file)",
    ]
    document = run_hip("inspect", ".", "--tree", "--count", "words", "--json").json
    assert document["tree"]["words"] == document["totals"]["words"] == 4
