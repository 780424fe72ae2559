"""What a question is asked about, in one shape: documents just read, or a saved session."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hipcli import fit, places
from hipcli.engine.errors import InputError, SessionError
from hipcli.places import Locate, Place

if TYPE_CHECKING:
    import numpy as np

    from hipcli.documents import Corpus
    from hipcli.engine.sessions import SessionRecord, SessionStore
    from hipcli.engine.tokenizer import Tokenizer
    from hipcli.prompts import Context


@dataclass(frozen=True, slots=True)
class Material:
    """A context ready for the engine.

    Args:
        ids: int32 [N], scaffold and documents.
        prefix_tokens: how many of the first tokens are scaffold.
        document_tokens: tokens of the documents alone, without scaffold and delimiters.
        truncated_tokens: tokens left out by `--fit`.
        inputs: rows of `inputs[]` in JSON.
        digests: (name, SHA-256) of each document, in the order they are read.
        locate: the places of tokens [start, end).
    """

    ids: "np.ndarray"
    prefix_tokens: int
    document_tokens: int
    truncated_tokens: int
    inputs: tuple[dict[str, Any], ...]
    digests: tuple[tuple[str, str], ...]
    locate: Locate

    def as_record(self) -> dict[str, Any]:
        """What a session must remember besides token ids, as plain data."""
        return {
            "prefix_tokens": self.prefix_tokens,
            "document_tokens": self.document_tokens,
            "truncated_tokens": self.truncated_tokens,
            "inputs": list(self.inputs),
            "places": places.record(self.locate, 0, len(self.ids)),
        }


def from_corpus(corpus: "Corpus", context: "Context", prefix_tokens: int, cut: fit.Cut) -> Material:
    """Documents just read, less what `cut` leaves out."""
    import numpy as np

    def locate(start: int, end: int) -> list[Place]:
        found = [
            Place(
                passage.name,
                passage.page,
                passage.page_label,
                passage.line_start,
                passage.line_end,
                passage.text,
            )
            for span in cut.whole(start, end)
            for passage in context.locate(*span)
        ]
        return places.joined(found)

    return Material(
        ids=np.delete(context.ids, slice(cut.start, cut.end)),
        prefix_tokens=prefix_tokens,
        document_tokens=max(0, context.document_tokens - cut.tokens),
        truncated_tokens=cut.tokens,
        inputs=input_rows(corpus, context.tokens_by_document),
        digests=tuple((document.name, document.sha256) for document in corpus.documents),
        locate=locate,
    )


def from_session(
    store: "SessionStore", record: "SessionRecord", tokenizer: "Tokenizer"
) -> Material:
    """The context of a saved session; no document is read.

    Raises:
        SessionError: the session holds no places: it was not made by `hip ask`.
    """
    ids = store.context(record)
    remembered = record.extra
    if "places" not in remembered:
        raise SessionError(
            f"session {record.id} was not made by `hip ask`", "ask about the documents again"
        )
    return Material(
        ids=ids,
        prefix_tokens=remembered["prefix_tokens"],
        document_tokens=remembered["document_tokens"],
        truncated_tokens=remembered["truncated_tokens"],
        inputs=tuple(remembered["inputs"]),
        digests=tuple((entry["name"], entry["sha256"]) for entry in record.inputs),
        locate=places.from_record(
            remembered["places"], lambda start, end: tokenizer.decode(ids[start:end])
        ),
    )


def input_rows(corpus: "Corpus", tokens: Iterable[int] | None) -> tuple[dict[str, Any], ...]:
    """Rows of `inputs[]` in JSON, one per input.

    Args:
        corpus: what was read.
        tokens: tokens of each document of `corpus.documents`; None when nobody counted.
    """
    counted = {}
    if tokens is not None:
        counted = {
            id(document): number for document, number in zip(corpus.documents, tokens, strict=True)
        }
    return tuple(
        {
            "path": entry.name,
            "type": entry.kind,
            "sha256": entry.sha256,
            "bytes": entry.num_bytes,
            "pages": entry.num_pages,
            "tokens": counted.get(id(entry)),
            "encoding": entry.encoding,
            "status": entry.status,
            "reason": entry.reason,
        }
        for entry in corpus.inputs
    )


def refuse_own_output(corpus: "Corpus", output: Path | None) -> None:
    """An answer must not replace a document it is about.

    Raises:
        InputError: the file named by `-o` is one of the documents.
    """
    if output is None or not output.exists():
        return
    for document in corpus.documents:
        path = Path(document.path)
        if path.exists() and path.samefile(output):
            raise InputError(
                f"-o {output} would replace a document that is read", "name another file"
            )
