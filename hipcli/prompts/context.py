"""The documents as token ids, and the way back from tokens to document, page and line."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hipcli.documents import OutlineEntry
from hipcli.engine.errors import SessionError
from hipcli.prompts.packing import pack, unpack

MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A document's place in the context.

    Args:
        name: as the model sees it.
        path: absolute, "-" for standard input; surrogate escapes possible.
        kind: "pdf", "notebook", ...
        sha256: of the bytes it was read from.
        start_token: where its opening delimiter starts.
        end_token: where its closing delimiter ends.
        text_tokens: how many of these tokens are its text, without delimiters and page marks.
        outline: sections that the file itself names (title, level, page); empty for most.
    """

    name: str
    path: str
    kind: str
    sha256: str
    start_token: int
    end_token: int
    text_tokens: int
    outline: tuple[OutlineEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Text of one page, cell, or document without pages: tokens [start_token, end_token).

    Args:
        document: index into `Context.documents`.
        page: 1-based page or cell, None without pages.
        mark_token: where its page mark starts; `start_token` where it has none.
    """

    document: int
    page: int | None
    page_label: str | None
    mark_token: int
    start_token: int
    end_token: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of one page, cell or document without pages.

    Args:
        kind: of the document; for "notebook" `page` is the number of a cell.
        line_start, line_end: 1-based lines of the file, page or cell, both included.
        text: its text without blank lines around it.
        start_token, end_token: where it stands in the context.
    """

    name: str
    path: str
    kind: str
    page: int | None
    page_label: str | None
    line_start: int
    line_end: int
    text: str
    start_token: int
    end_token: int


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What the engine prefills: chat scaffold, introduction and documents.

    Args:
        ids: int32 [N].
        documents: in order.
        spans: the parts that are text of documents, in order, none of them empty.
        first_lines: int32 [N]; line of the first character that is not white space at or after
            the start of each token, within its span; 0 outside of spans.
        last_lines: int32 [N]; line of the last such character before the end of each token.
        decode: token ids to text.
    """

    ids: np.ndarray
    documents: tuple[DocumentSpan, ...]
    spans: tuple[TextSpan, ...]
    first_lines: np.ndarray
    last_lines: np.ndarray
    decode: Callable[[Sequence[int]], str]

    @property
    def document_tokens(self) -> int:
        """Tokens of the documents' texts, without scaffold, delimiters and page marks."""
        return sum(document.text_tokens for document in self.documents)

    def locate(self, start_token: int, end_token: int) -> list[Passage]:
        """What stands at tokens [start_token, end_token): a passage for each page it touches.

        Delimiters, marks and the scaffold belong to no passage, and a span of white space is none,
        so the list may be empty.

        Raises:
            ValueError: the range is not within the context.
        """
        if not 0 <= start_token <= end_token <= len(self.ids):
            raise ValueError(
                f"tokens [{start_token}, {end_token}) are not within [0, {len(self.ids)})"
            )
        passages = []
        for index in range(self._first_span(start_token), len(self.spans)):
            span = self.spans[index]
            if span.start_token >= end_token:
                break
            passage = self._passage(
                span, max(start_token, span.start_token), min(end_token, span.end_token)
            )
            if passage is not None:
                passages.append(passage)
        return passages

    def to_manifest(self) -> dict[str, Any]:
        """What `from_manifest` needs besides the ids: plain JSON types, valid Unicode.

        Lines of tokens are differences, mostly zero: a million tokens of prose take some tens of
        kilobytes, of code some hundreds.
        """
        return {
            "version": MANIFEST_VERSION,
            "num_tokens": len(self.ids),
            "documents": [_document_record(document) for document in self.documents],
            "spans": [
                [s.document, s.page, s.page_label, s.mark_token, s.start_token, s.end_token]
                for s in self.spans
            ],
            "first_lines": pack(np.diff(self.first_lines, prepend=0)),
            # How much further a token's last line is than its first: nearly always nothing.
            "last_lines": pack(self.last_lines - self.first_lines),
        }

    @classmethod
    def from_manifest(
        cls, manifest: dict[str, Any], ids: np.ndarray, decode: Callable[[Sequence[int]], str]
    ) -> "Context":
        """The context of a saved session; no document is read.

        Args:
            manifest: from `to_manifest`.
            ids: int32 [N], the session's token ids.
            decode: token ids to text, by the session's tokenizer.

        Raises:
            SessionError: the manifest is of another version, damaged, or of other ids.
        """
        if not isinstance(manifest, dict) or manifest.get("version") != MANIFEST_VERSION:
            raise SessionError("the session's page map is of another version of hip")
        try:
            num_tokens = len(ids)
            if manifest["num_tokens"] != num_tokens:
                raise ValueError(f"{manifest['num_tokens']} tokens expected, {num_tokens} found")
            documents = tuple(_document_span(record) for record in manifest["documents"])
            spans = tuple(TextSpan(*record) for record in manifest["spans"])
            _check_spans(spans, len(documents), num_tokens)
            steps = unpack(manifest["first_lines"], num_tokens)
            first_lines = np.cumsum(steps, dtype=np.int32)
            last_lines = first_lines + unpack(manifest["last_lines"], num_tokens)
        except (KeyError, TypeError, ValueError) as error:
            raise SessionError(f"the session's page map is damaged ({error})") from error
        ids = np.asarray(ids, dtype=np.int32)
        return cls(ids, documents, spans, first_lines, last_lines, decode)

    def _first_span(self, token: int) -> int:
        """Index of the first span that ends behind `token`."""
        low, high = 0, len(self.spans)
        while low < high:
            middle = (low + high) // 2
            if self.spans[middle].end_token <= token:
                low = middle + 1
            else:
                high = middle
        return low

    def _passage(self, span: TextSpan, start: int, end: int) -> Passage | None:
        # A token can be a part of a character; what is cut off at the ends decodes to U+FFFD.
        text = self.decode(self.ids[start:end].tolist()).strip("\ufffd").rstrip()
        if not text:
            return None
        # Blank lines in front go, the indentation of the first line with text stays.
        head = text[: len(text) - len(text.lstrip())]
        text = text[head.rfind("\n") + 1 :]
        document = self.documents[span.document]
        first, last = int(self.first_lines[start]), int(self.last_lines[end - 1])
        return Passage(
            name=document.name,
            path=document.path,
            kind=document.kind,
            page=span.page,
            page_label=span.page_label,
            line_start=first,
            line_end=max(first, last),
            text=text,
            start_token=start,
            end_token=end,
        )


def _check_spans(spans: tuple[TextSpan, ...], num_documents: int, num_tokens: int) -> None:
    at = 0
    for span in spans:
        if not (at <= span.mark_token <= span.start_token < span.end_token <= num_tokens):
            raise ValueError(f"text at tokens [{span.start_token}, {span.end_token})")
        if not 0 <= span.document < num_documents:
            raise ValueError(f"text of document {span.document}")
        at = span.end_token


def remembered_documents(manifest: dict[str, Any]) -> tuple[DocumentSpan, ...]:
    """The documents of a saved session, without its token ids; none if nothing is remembered."""
    return tuple(_document_span(record) for record in manifest.get("documents", ()))


def _document_record(document: DocumentSpan) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": document.name,
        "path": document.path,
        "kind": document.kind,
        "sha256": document.sha256,
        "tokens": [document.start_token, document.end_token, document.text_tokens],
    }
    if document.outline:
        record["outline"] = [[entry.title, entry.level, entry.page] for entry in document.outline]
    try:
        document.path.encode("utf-8")
    except UnicodeEncodeError:
        # JSON is Unicode, a path need not be.
        record["path"] = None
        record["path_hex"] = os.fsencode(document.path).hex()
    return record


def _document_span(record: dict[str, Any]) -> DocumentSpan:
    path = record["path"]
    if path is None:
        path = os.fsdecode(bytes.fromhex(record["path_hex"]))
    start, end, text_tokens = record["tokens"]
    outline = tuple(OutlineEntry(*entry) for entry in record.get("outline", ()))
    return DocumentSpan(
        record["name"], path, record["kind"], record["sha256"], start, end, text_tokens, outline
    )
