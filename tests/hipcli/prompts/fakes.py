"""Tokenizers whose every token can be worked out by hand, and documents made of literals."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hipcli.documents import Corpus, Document, Page

BEGIN, END, HEADER = 0, 1, 2
_SPECIAL = 3


@dataclass(frozen=True)
class Encoded:
    ids: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Scaffold:
    prefix_ids: list[int]
    suffix_ids: list[int]
    lead: str = ""


class ByteTokenizer:
    """Tokens of `width` bytes, so that some are parts of characters and some cross lines."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.pieces: list[bytes] = []
        self.numbers: dict[bytes, int] = {}

    def encode(self, text: str) -> Encoded:
        data = text.encode("utf-8")
        pieces = [data[at : at + self.width] for at in range(0, len(data), self.width)]
        # The character that each byte is part of.
        chars = np.repeat(np.arange(len(text)), [len(char.encode("utf-8")) for char in text])
        ends = np.minimum(np.arange(1, len(pieces) + 1) * self.width, len(data)) - 1
        starts = np.arange(len(pieces)) * self.width
        offsets = np.stack([chars[starts], chars[ends] + 1], axis=1) if pieces else np.empty((0, 2))
        return Encoded(np.array([self._number(p) for p in pieces], dtype=np.int32), offsets)

    def decode(self, ids: Sequence[int]) -> str:
        names = {BEGIN: b"<|im_start|>", END: b"<|im_end|>", HEADER: b"<|assistant|>"}
        parts = [names[i] if i < _SPECIAL else self.pieces[i - _SPECIAL] for i in ids]
        return b"".join(parts).decode("utf-8", "replace")

    def scaffold(self, system: str | None) -> Scaffold:
        return Scaffold([BEGIN, *self.encode(system or "").ids.tolist()], [END, HEADER])

    def _number(self, piece: bytes) -> int:
        if piece not in self.numbers:
            self.numbers[piece] = len(self.pieces) + _SPECIAL
            self.pieces.append(piece)
        return self.numbers[piece]


def document(
    name: str, text: str, kind: str = "text", pages: tuple[Page, ...] = (), path: str = ""
) -> Document:
    return Document(
        name=name,
        path=path or f"/books/{name}",
        kind=kind,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        num_bytes=len(text.encode()),
        text=text,
        pages=pages,
        encoding="utf-8",
        status="read",
        code="",
        reason="",
        hint="",
    )


def paged(
    name: str, texts: Sequence[str], labels: Sequence[str | None] = (), kind: str = "pdf"
) -> Document:
    """A document with a page for each text; an empty text is an empty page."""
    pages, at = [], 0
    for number, text in enumerate(texts, start=1):
        label = labels[number - 1] if labels else None
        status = "text" if text else "empty"
        pages.append(Page(number, label, at, at + len(text), status))
        at += len(text) + 1
    return document(name, "\n".join(texts), kind, tuple(pages))


def corpus(*documents: Document) -> Corpus:
    return Corpus(documents, documents, ())
