"""Folders: what is read of them, what is left out and why."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from hipcli.documents import Corpus, ReadOptions, read_sources
from hipcli.engine.errors import InputError, UsageError

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


def put(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, timeout=30)


def read(folder: Path, **options: object) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return read_sources(["."], ReadOptions(**options))  # type: ignore[arg-type]


def names(corpus: Corpus) -> list[str]:
    return [document.name for document in corpus.documents]


def reasons(corpus: Corpus) -> dict[str, str]:
    return {document.name: document.code for document in corpus.inputs if not document.text}


@pytest.fixture(params=["git", "plain"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty folder, under git or not: both must give the same."""
    if request.param == "git":
        git(tmp_path, "init", "-q")
    return tmp_path


def test_order_is_that_of_bytes(place: Path) -> None:
    files = ["b.txt", "a/z.txt", "a.txt", "a-b.txt", "B.txt", "é.txt", "a/b/c.txt", "z.txt"]
    put(place, dict.fromkeys(files, "x\n"))
    assert names(read(place)) == sorted(files, key=os.fsencode)


def test_ignored_files_are_no_inputs(place: Path) -> None:
    put(place, {".gitignore": "*.log\nout/\n", "a.txt": "x", "b.log": "x", "out/c.txt": "x"})
    corpus = read(place)
    assert names(corpus) == ["a.txt"]
    assert reasons(corpus) == {".gitignore": "hidden"}
    everything = read(place, gitignore=False, hidden=True)
    assert names(everything) == [".gitignore", "a.txt", "b.log", "out/c.txt"]


def test_hidden_folders_are_one_line_and_gits_own_is_none(place: Path) -> None:
    put(place, {".ci/a.yml": "x", ".ci/b.yml": "x", "c/.d/e.txt": "x", "f.txt": "x"})
    corpus = read(place)
    assert names(corpus) == ["f.txt"]
    assert reasons(corpus) == {".ci/": "hidden", "c/.d/": "hidden"}
    assert names(read(place, hidden=True)) == [".ci/a.yml", ".ci/b.yml", "c/.d/e.txt", "f.txt"]


def test_include_and_exclude(place: Path) -> None:
    put(place, dict.fromkeys(["a.py", "a.md", "t/b.py", "t/c.md", "u/d.py"], "x"))
    assert names(read(place, include=("*.py",))) == ["a.py", "t/b.py", "u/d.py"]
    assert names(read(place, include=("*.py",), exclude=("t/",))) == ["a.py", "u/d.py"]
    assert names(read(place, include=("/t/",))) == ["t/b.py", "t/c.md"]
    corpus = read(place, exclude=("*.py",))
    assert reasons(corpus) == dict.fromkeys(["a.py", "t/b.py", "u/d.py"], "excluded")
    for options in ({"include": ("a\\",)}, {"exclude": ("!",)}):
        with pytest.raises(UsageError, match="pattern"):
            read(place, **options)


def test_what_is_left_out_and_why(place: Path) -> None:
    put(
        place,
        {
            "read.py": "x = 1\n",
            "uv.lock": "x",
            "package-lock.json": "{}",
            "app.min.js": "x",
            "bundle.js": "var a=1;" * 2000,
            "node_modules/m/index.js": "x",
            "__pycache__/a.pyc": "x",
            "lib/vendor/v.go": "x",
            "id_ed25519": KEY,
            "id_ed25519.pub": "ssh-ed25519 AAAA\n",
            "server.pem": "x",
            "deploy": KEY,
            "bag": "Bag Attributes\n    localKeyID: 01\n" + KEY,
            "prod.env": "TOKEN=x",
            "prod.env.example": "TOKEN=\n",
            "guide.md": "Your key looks like this:\n" * 9 + KEY,
            "big.csv": "1,2,3\n" * 1000,
            "image.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            "data.bin": b"\0\1\2",
            "empty.txt": "",
            "blank.txt": "\n \n",
            "page.html": "<html></html>",
            "paper.docx": b"PK\x03\x04" + b"word/document.xml",
            "weights.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        },
    )
    corpus = read(place, max_file_bytes=5000)
    assert names(corpus) == ["guide.md", "id_ed25519.pub", "prod.env.example", "read.py"]
    assert reasons(corpus) == {
        "uv.lock": "lock_file",
        "package-lock.json": "lock_file",
        "app.min.js": "minified",
        "bundle.js": "too_large",
        "node_modules/": "vendored",
        "__pycache__/": "cache",
        "lib/vendor/": "vendored",
        "id_ed25519": "secret",
        "server.pem": "secret",
        "deploy": "secret",
        "bag": "secret",
        "prod.env": "secret",
        "big.csv": "too_large",
        "image.png": "binary",
        "data.bin": "binary",
        "empty.txt": "empty",
        "blank.txt": "blank",
        "page.html": "blank",
        "paper.docx": "archive",
        "weights.bin": "lfs_pointer",
    }
    assert reasons(read(place))["bundle.js"] == "minified"
    # Files left out of a folder on purpose are no reason to warn, or to fail with strict.
    (warning,) = corpus.warnings
    assert warning.code == "secrets_skipped"
    assert "bag, deploy, id_ed25519, prod.env, server.pem" in warning.message
    assert names(read(place, max_file_bytes=5000, strict=True)) == names(corpus)


def test_a_secret_is_read_when_it_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, {".env": "TOKEN=x\n", "a.txt": "x\n", "deploy": KEY})
    monkeypatch.chdir(place)
    assert reasons(read_sources(["."], ReadOptions())) == {".env": "secret", "deploy": "secret"}
    corpus = read_sources([".", ".env", "deploy"], ReadOptions())
    assert names(corpus) == ["a.txt", ".env", "deploy"]
    assert reasons(corpus) == {}


def test_links(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = put(tmp_path_factory.mktemp("outside"), {"o.txt": "outside\n"})
    put(place, {"a/real.txt": "real\n", ".env": "TOKEN=x\n", "ignored.log": "log\n"})
    (place / ".gitignore").write_text("*.log\n")
    for name, target in {
        "to_file": "a/real.txt",
        "to_ignored": "ignored.log",
        "to_secret": ".env",
        "to_folder": "a",
        "to_parent": "..",
        "to_self": "to_self",
        "to_outside": str(outside / "o.txt"),
        "to_nothing": "nothing",
        "to_device": "/dev/zero",
    }.items():
        (place / name).symlink_to(target)
    corpus = read(place)
    assert names(corpus) == ["a/real.txt", "to_ignored"]
    found = reasons(corpus)
    assert found.pop("to_self") in ("missing", "unreadable")
    assert found == {
        ".env": "secret",
        ".gitignore": "hidden",
        "to_file": "link",
        "to_secret": "secret",
        "to_folder": "folder",
        "to_parent": "folder",
        "to_outside": "link_outside",
        "to_nothing": "missing",
        "to_device": "not_regular",
    }


def test_pipes_and_sockets_are_not_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place, {"a.txt": "x\n"})
    os.mkfifo(place / "pipe")
    monkeypatch.chdir(place)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        corpus = read(place)
    assert names(corpus) == ["a.txt"]
    assert set(reasons(corpus).values()) <= {"not_regular"}
    with pytest.raises(InputError, match="named pipe"):
        read_sources([str(place / "pipe")], ReadOptions())


def test_names_that_are_no_utf8(place: Path) -> None:
    raw = os.fsencode(place)
    strange = [b"caf\xe9.txt", b"new\nline.txt", b"esc\x1b[31m.txt", "rtl\u202e.txt".encode()]
    for name in strange:
        with open(os.path.join(raw, name), "wb") as file:
            file.write(b"read\n")
    corpus = read(place)
    assert names(corpus) == [
        "caf\\xe9.txt",
        "esc\\x1b[31m.txt",
        "new\\nline.txt",
        "rtl\\u202e.txt",
    ]
    for document in corpus.documents:
        document.name.encode("utf-8")
        with open(document.path, "rb") as file:
            assert file.read() == b"read\n"


def test_tracked_files_that_are_gone_or_behind_a_link(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    put(
        tmp_path,
        {"gone.txt": "x", "dir/inner.txt": "x", "stay.txt": "x", "elsewhere/inner.txt": "y"},
    )
    git(tmp_path, "add", ".")
    (tmp_path / "gone.txt").unlink()
    shutil.rmtree(tmp_path / "dir")
    (tmp_path / "dir").symlink_to("elsewhere")
    corpus = read(tmp_path)
    assert names(corpus) == ["elsewhere/inner.txt", "stay.txt"]
    assert reasons(corpus)["gone.txt"] == "missing"
    assert reasons(corpus)["dir/inner.txt"] == "link_outside"


def test_repositories_within_are_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    put(tmp_path, {"a.txt": "x", "sub/b.txt": "y"})
    git(tmp_path / "sub", "init", "-q")
    git(tmp_path / "sub", "add", ".")
    git(tmp_path / "sub", "commit", "-qm", "one")
    corpus = read(tmp_path)
    assert names(corpus) == ["a.txt"]
    assert reasons(corpus) == {"sub": "folder"}
    assert names(read(tmp_path / "sub")) == ["b.txt"]


def test_an_ignored_folder_is_read_when_it_is_named(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    put(
        tmp_path,
        {".gitignore": "build/\n", "a.txt": "x", "build/b.txt": "y", "build/in/c.txt": "z"},
    )
    assert names(read(tmp_path)) == ["a.txt"]
    assert names(read(tmp_path / "build")) == ["b.txt", "in/c.txt"]
    assert names(read(tmp_path / "build" / "in")) == ["c.txt"]


def test_linked_work_trees_and_the_environment_of_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, other = tmp_path / "main", tmp_path / "other"
    for folder in (main, other):
        folder.mkdir()
        git(folder, "init", "-q")
        put(folder, {f"{folder.name}.txt": "x", ".gitignore": "*.log\n", "a.log": "x"})
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "one")
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"))
    put(tmp_path / "linked", {"b.log": "x"})
    assert names(read(tmp_path / "linked")) == ["main.txt"]
    # Inside a hook these name the repository that the hook runs for.
    monkeypatch.setenv("GIT_DIR", str(main / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(main))
    assert names(read(other)) == ["other.txt"]


def test_a_hostile_repository_runs_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    put(tmp_path, {"a.txt": "x"})
    proof = tmp_path / "proof"
    script = put(tmp_path, {"evil.sh": f"#!/bin/sh\ntouch {proof}\n"}) / "evil.sh"
    script.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "pager.ls-files", "core.sshCommand"):
        git(tmp_path, "config", key, str(script))
    assert names(read(tmp_path)) == ["a.txt", "evil.sh"]
    assert not proof.exists()


def test_without_git_the_walk_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    put(
        tmp_path,
        {".gitignore": "*.log\n!keep.log\n", "a.log": "x", "keep.log": "x", "s/b.log": "x"},
    )
    with_git = names(read(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert names(read(tmp_path)) == with_git == ["keep.log"]


def test_a_folder_without_anything_to_read(place: Path) -> None:
    put(place, {"a.png": b"\x89PNG\0", "b.lock": ""})
    with pytest.raises(InputError) as caught:
        read(place)
    assert "a.png: binary data (a PNG image)" in caught.value.message
    assert "b.lock: empty file (0 bytes)" in caught.value.message
    shutil.rmtree(place / "a.png", ignore_errors=True)
    (place / "a.png").unlink()
    (place / "b.lock").unlink()
    with pytest.raises(InputError, match="nothing in it to read"):
        read(place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(place: Path) -> None:
    put(place, {"a.txt": "x", "b.txt": "y", "c/d.txt": "z"})
    (place / "b.txt").chmod(0)
    (place / "c").chmod(0)
    try:
        corpus = read(place, gitignore=False)
        assert names(corpus) == ["a.txt"]
        assert reasons(corpus) == {"b.txt": "unreadable", "c/": "unreadable"}
        assert len(corpus.warnings) == 2
    finally:
        (place / "c").chmod(0o755)
