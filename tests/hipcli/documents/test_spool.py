"""Standard input: small, large, endless, hostile."""

import io
import os
import random
from pathlib import Path

import pytest

from hipcli.documents import ReadOptions, read_sources, spool
from hipcli.documents.spool import Spool
from hipcli.engine.errors import InputError
from tests.hipcli.documents import pdfs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY_BYTES", 3000)
    monkeypatch.setattr(spool, "_PIECE_BYTES", 1000)


def read(data: bytes, **options: str) -> str:
    given = ReadOptions(stdin=spool.spool(io.BytesIO(data)), **options)  # type: ignore[arg-type]
    return read_sources(["-"], given).documents[0].text


class Endless(io.RawIOBase):
    """Zeros for ever."""

    given = 0

    def read(self, size: int = -1) -> bytes:
        self.given += size
        return bytes(size)


class Broken(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise OSError(5, "Input/output error")


def test_small_and_large_text_is_the_same_as_from_a_file() -> None:
    assert read(b"piped in\r\n") == "piped in\n"
    text = "Die Fähre legt um neun ab.\n" * 500
    assert read(text.encode()) == text
    assert read(text.encode("cp1252"), encoding="cp1252") == text
    assert read(text.encode("utf-16-le"), encoding="utf-16-le") == text
    words = "\u6e2f\u53e3" * 2000
    assert read(words.encode()) == words


def test_large_input_of_other_kinds_is_read_too() -> None:
    pages = [pdfs.text(*(f"{number} {line}" for line in pdfs.PROSE)) for number in range(20)]
    assert "19 " + pdfs.PROSE[0] in read(pdfs.draw(*pages))
    cells = '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [%s]}'
    cell = '{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "The tide"}'
    assert "The tide" in read((cells % ",".join([cell] * 90)).encode())


@pytest.mark.parametrize(
    "data, why",
    [
        (bytes(9000), "binary data"),
        (random.Random(1).randbytes(9000), "binary data"),
        (b"\x7fELF" + bytes(9000), "an ELF program"),
        (b"\x1f\x8b\x08" + random.Random(2).randbytes(9000), "archives are not read"),
        (b"text\n" * 300 + b"\0\1\2" * 3000, "binary data"),
        (b"", "empty"),
        (b" \n" * 4000, "nothing but white space"),
    ],
)
def test_hostile_input_is_refused_with_its_reason(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(data)


def test_large_binary_data_is_not_taken_into_memory() -> None:
    class Watched(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            piece = super().read(size)
            self.taken += len(piece)
            return piece

    data = Watched(bytes(500_000))
    with pytest.raises(InputError):
        read_sources(["-"], ReadOptions(stdin=Spool(data, 500_000)))
    assert data.taken <= 1000


def test_an_endless_pipe_ends_at_the_limit() -> None:
    stream = Endless()
    with pytest.raises(InputError, match="more than 50,000 bytes"):
        spool.spool(stream, max_bytes=50_000)  # type: ignore[arg-type]
    assert stream.given <= 52_000


def test_a_pipe_that_breaks_and_a_full_disk_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="cannot be read: Input/output error"):
        spool.spool(Broken())  # type: ignore[arg-type]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="cannot be kept in .*gone") as caught:
        spool.spool(io.BytesIO(bytes(9000)))
    assert "TMPDIR" in caught.value.hint


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = spool.spool(io.BytesIO(b"x\n" * 5000))
    assert kept.read(None) == b"x\n" * 5000
    assert kept.read(None) == b"x\n" * 5000
    assert os.listdir(tmp_path) == []
