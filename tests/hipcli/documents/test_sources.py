"""Sources as the user names them: one or many, good and bad, standard input."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.documents import PdfLimits, ReadOptions, parse_file_list, printable_name, read_sources
from hipcli.documents.kinds import kind_of
from hipcli.documents.refusal import Refusal
from hipcli.documents.sources import read_bytes
from hipcli.engine.errors import InputError, UsageError
from tests.hipcli.documents import pdfs


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error(*sources: str, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        read_sources(sources, ReadOptions(**options))  # type: ignore[arg-type]
    return caught.value


def test_what_a_document_says_of_itself() -> None:
    data = "one\r\ntwo café\r\n".encode()
    Path("sub").mkdir()
    Path("sub/a.md").write_bytes(data)
    (document,) = read_sources(["./sub//a.md"], ReadOptions()).documents
    assert document.name == "sub/a.md"
    assert document.path == os.path.abspath("sub/a.md")
    assert document.kind == "markdown"
    assert document.sha256 == hashlib.sha256(data).hexdigest()
    assert document.num_bytes == len(data)
    assert document.text == "one\ntwo café\n"
    assert (document.encoding, document.status, document.reason) == ("utf-8", "read", "")
    assert document.pages == ()
    assert [document.line_at(i) for i in (0, 3, 4, 12)] == [1, 1, 2, 2]


def test_folders_give_names_as_typed() -> None:
    Path("sub/in").mkdir(parents=True)
    Path("sub/in/a.txt").write_text("x")
    for typed, name in {
        ".": "sub/in/a.txt",
        "sub": "sub/in/a.txt",
        "./sub/": "sub/in/a.txt",
        "sub/in/..": "sub/in/a.txt",
        os.path.abspath("sub"): os.path.abspath("sub/in/a.txt"),
    }.items():
        assert [d.name for d in read_sources([typed], ReadOptions()).documents] == [name]


def test_order_is_that_of_the_sources_and_nothing_is_read_twice() -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        Path(name).write_text(name)
    corpus = read_sources(["c.txt", ".", "c.txt", "./a.txt"], ReadOptions(stdin=b""))
    assert [d.name for d in corpus.documents] == ["c.txt", "b.txt", "a.txt"]
    assert [(d.name, d.code) for d in corpus.inputs if not d.text] == [("c.txt", "repeated")]
    assert corpus.warnings == ()
    both = read_sources(["a.txt", "-"], ReadOptions(stdin=b"piped\n"))
    assert [(d.name, d.path) for d in both.documents][1] == ("stdin", "-")


def test_missing_sources_are_an_error_that_names_them_all() -> None:
    Path("a.txt").write_text("x")
    caught = error("a.txt", "b.txt", "no/such.pdf")
    assert caught.code == "input_unusable"
    assert caught.message == "b.txt: no such file or folder; no/such.pdf: no such file or folder"
    assert "'' is no name" in error("a.txt", "").message
    assert "no name" in error("a\0b").message
    assert "no such file" in error("caf\udce9.txt").message
    # Named in one breath with a file, below which there can be nothing.
    assert "a.txt/b" in error("a.txt/b").message


def test_sources_without_text_are_warnings_among_others_and_errors_alone() -> None:
    Path("good.txt").write_text("x")
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text("\n\n")
    Path("image.jpg").write_bytes(b"\xff\xd8\xff\xe0\0")
    Path("scan.pdf").write_bytes(pdfs.draw(pdfs.scan()))
    Path("page.pdf").write_bytes(b"<!-- x --><!DOCTYPE html><html><body>Log in</body></html>")
    bad = {
        "empty.txt": ("empty", "empty file (0 bytes)"),
        "blank.txt": ("blank", "nothing but white space"),
        "image.jpg": ("binary", "a JPEG image"),
        "scan.pdf": ("pdf_no_text", "its only page is images"),
        "page.pdf": ("html_as_pdf", "HTML"),
    }
    for name, (_, words) in bad.items():
        caught = error(name)
        assert caught.message.startswith(f"{name}: ")
        assert words in caught.message
    assert "OCR" in error("scan.pdf").hint
    corpus = read_sources(["good.txt", *bad], ReadOptions())
    assert [d.name for d in corpus.documents] == ["good.txt"]
    assert [w.code for w in corpus.warnings] == [code for code, _ in bad.values()]
    assert all(w.message.startswith(w.path.rpartition("/")[2]) for w in corpus.warnings)
    assert "--strict" in error("good.txt", "empty.txt", strict=True).message


def test_strict_refuses_what_is_partial() -> None:
    Path("broken.txt").write_bytes("é".encode() * 20 + b"\xff\n")
    Path("mixed.pdf").write_bytes(pdfs.draw(pdfs.text("words"), pdfs.scan()))
    corpus = read_sources(["broken.txt", "mixed.pdf"], ReadOptions())
    assert [d.status for d in corpus.documents] == ["partial", "partial"]
    assert [w.code for w in corpus.warnings] == ["undecodable_bytes", "pdf_image_pages"]
    for name in ("broken.txt", "mixed.pdf"):
        assert f"{name}: " in error(name, strict=True).message


def test_standard_input() -> None:
    assert read_sources(["-"], ReadOptions(stdin=b"a\nb")).documents[0].text == "a\nb"
    pdf = read_sources(["-"], ReadOptions(stdin=pdfs.draw(pdfs.text("piped")))).documents[0]
    assert (pdf.kind, pdf.text, pdf.num_pages) == ("pdf", "piped", 1)
    cells = [{"cell_type": "code", "source": "x"}]
    notebook = json.dumps({"nbformat": 4, "cells": cells}).encode()
    assert read_sources(["-"], ReadOptions(stdin=notebook)).documents[0].kind == "notebook"
    assert "stdin: empty" in error("-", stdin=b"").message
    for sources, options in (
        (["-"], ReadOptions()),
        (["-", "-"], ReadOptions(stdin=b"x")),
        ([], ReadOptions()),
    ):
        with pytest.raises(UsageError):
            read_sources(sources, options)


def test_what_a_shell_passes_for_a_command() -> None:
    """`hip ask <(command)` names a descriptor, which is a pipe."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"from a command\n")
    os.close(write_end)
    try:
        corpus = read_sources([f"/dev/fd/{read_end}"], ReadOptions())
    finally:
        os.close(read_end)
    assert corpus.documents[0].text == "from a command\n"


def test_devices_are_not_read() -> None:
    assert "a device" in error("/dev/zero").message


def test_a_named_file_may_be_large_and_a_link() -> None:
    Path("large.txt").write_text("x" * 1000)
    Path("link.txt").symlink_to("large.txt")
    options = ReadOptions(max_file_bytes=10)
    assert len(read_sources(["large.txt"], options).documents[0].text) == 1000
    assert len(read_sources(["link.txt"], options).documents[0].text) == 1000


def test_passwords_reach_pdfs_and_nothing_else() -> None:
    data = pdfs.encrypt(pdfs.draw(pdfs.text("locked")), "AES-256", user="rose", owner="boss")
    Path("locked.pdf").write_bytes(data)
    assert "--password-file" in error("locked.pdf").hint
    options = ReadOptions(password="rose")
    assert "rose" not in repr(options)
    corpus = read_sources(["locked.pdf"], options)
    assert corpus.documents[0].text == "locked"
    assert "rose" not in repr(corpus)


def test_progress_names_each_input() -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("x")
    calls: list[tuple[int, int, str]] = []
    read_sources(["."], ReadOptions(), lambda *call: calls.append(call))
    assert calls == [(0, 2, "a.txt"), (1, 2, "b.txt")]


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.py", b"x", "code"),
        ("Makefile", b"x", "code"),
        ("script", b"#!/bin/sh\n", "code"),
        ("README.MD", b"x", "markdown"),
        ("a.csv", b"x", "text"),
        ("a.ipynb", b"{}", "notebook"),
        ("a.txt", b"%PDF-1.4\n", "pdf"),
        ("a.pdf", b"junk\n%PDF-1.4\n", "pdf"),
        ("about.txt", b"Files start with %PDF-1.4\n", "text"),
        ("stdin", b"OTTO was a king\n", "text"),
        ("stdin", b"GGUF is a format\n", "text"),
        ("a.txt", b"<html>as it was named</html>", "text"),
    ],
)
def test_kinds(name: str, data: bytes, kind: str) -> None:
    assert kind_of(name, data) == kind


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.odt", b"PK\x03\x04mimetypeapplication/vnd.oasis.opendocument.text", "not_supported"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "not_supported"),
        ("a.zip", b"PK\x03\x04", "archive"),
        ("a.zip", b"PK\x03\x04....word/notes.txt", "archive"),
        ("a.gz", b"\x1f\x8b\x08", "archive"),
        ("a.tar", b"a.txt".ljust(257, b"\0") + b"ustar\0", "archive"),
        ("a.pdf", b"\0" * 500, "pdf_damaged"),
        ("a.pdf", b"<!---->" * 500, "pdf_damaged"),
        ("a.pdf", b"version https://git-lfs.github.com/spec/v1\n", "lfs_pointer"),
    ],
)
def test_kinds_that_are_not_read(name: str, data: bytes, code: str) -> None:
    with pytest.raises(Refusal) as caught:
        kind_of(name, data)
    assert caught.value.code == code


def test_bytes_at_hand() -> None:
    assert read_bytes(b"x = 1\n", "a.py", ReadOptions()).text == "x = 1\n"
    refused = read_bytes(b"", "a.py", ReadOptions())
    assert (refused.status, refused.code, refused.text) == ("skipped", "empty", "")


def test_lists_of_files() -> None:
    assert parse_file_list(b"a b\r\n\n#c\ncaf\xe9\n", nul=False) == ["a b", "#c", "caf\udce9"]
    assert parse_file_list(b"a\nb\0c\0", nul=True) == ["a\nb", "c"]


def test_names_are_the_same_in_every_locale() -> None:
    code = (
        "from hipcli.documents import printable_name; import sys;"
        "print(ascii(printable_name(sys.argv[1])))"
    )
    for locale in ("C", "C.UTF-8"):
        environment = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code, "é\udce9".encode("utf-8", "surrogateescape")],
            env=environment,
            capture_output=True,
            check=True,
        )
        assert done.stdout.strip() == b"'\\xe9\\\\xe9'"
    assert printable_name("plain name.txt") == "plain name.txt"


@pytest.mark.parametrize("field", ["page_s", "total_s", "memory_bytes", "text_bytes"])
def test_limits_must_be_positive(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        PdfLimits(**{field: 0})
    with pytest.raises(UsageError):
        ReadOptions(max_file_bytes=0)


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, hipcli.documents;"
        "print([m for m in ('numpy', 'pathspec', 'pypdfium2', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
