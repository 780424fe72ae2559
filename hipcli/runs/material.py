"""What a question is asked about, in one shape: documents just read, or a saved session."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hipcli.engine.errors import DoesNotFitError, SessionError, UsageError
from hipcli.terminal.formatting import count

if TYPE_CHECKING:
    from hipcli.documents import Corpus
    from hipcli.engine.sessions import SessionRecord, SessionStore
    from hipcli.engine.tokenizer import Tokenizer
    from hipcli.prompts import Context


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens fit, and what to do when there are more.

    Args:
        limit_tokens: of prompt and answer; None for no limit.
        question_tokens: of the prompt after the documents.
        answer_tokens: reserved for the answer.
        fit: error, head (keep the start), tail (keep the end), middle (leave out the middle).
    """

    limit_tokens: int | None
    question_tokens: int
    answer_tokens: int
    fit: Literal["error", "head", "tail", "middle"]


@dataclass(frozen=True, slots=True)
class Material:
    """A context ready for the engine.

    Args:
        context: token ids, and the way from tokens to document, page and line.
        truncated_tokens: tokens of documents left out by `--fit`.
        inputs: rows of `inputs[]` in JSON.
    """

    context: "Context"
    truncated_tokens: int
    inputs: tuple[dict[str, Any], ...]

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the first document: scaffold and introduction."""
        documents = self.context.documents
        return documents[0].start_token if documents else 0

    @property
    def digests(self) -> tuple[tuple[str, str], ...]:
        """(name, SHA-256 of the bytes) of each document, in order."""
        return tuple((document.name, document.sha256) for document in self.context.documents)

    def as_record(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What a session must remember besides token ids, as plain data."""
        return {
            "context": self.context.to_manifest(),
            "truncated_tokens": self.truncated_tokens,
            "inputs": list(self.inputs),
            "settings": dict(settings),
        }


def from_corpus(
    corpus: "Corpus", tokenizer: "Tokenizer", system: str | None, room: Room
) -> Material:
    """Documents just read, cut to what fits if `room` allows it.

    Raises:
        DoesNotFitError: more tokens than fit.
    """
    from hipcli.prompts import assemble, fit

    context = assemble(corpus, tokenizer, system)
    inputs = input_rows(corpus, [document.text_tokens for document in context.documents])
    if room.limit_tokens is None:
        return Material(context, 0, inputs)
    free = room.limit_tokens - room.question_tokens - room.answer_tokens
    if len(context.ids) <= free:
        return Material(context, 0, inputs)
    if free <= 0:
        raise DoesNotFitError(
            f"question and answer take {count(room.question_tokens + room.answer_tokens)} tokens, "
            f"the limit is {count(room.limit_tokens)}",
            "ask for a shorter answer with --max-new-tokens, or raise --context-limit",
        )
    if room.fit == "error":
        tokens = (len(context.ids), room.question_tokens, room.answer_tokens)
        hint = "give less, raise --context-limit, or cut with --fit head, tail or middle"
        raise _too_much(*tokens, room.limit_tokens, hint)
    shorter, left_out = fit(context, free, room.fit, tokenizer)
    return Material(shorter, left_out, inputs)


def check_fits(
    material: Material, question_tokens: int, answer_tokens: int, limit_tokens: int | None
) -> None:
    """Refuses a question that does not fit beside the documents.

    Raises:
        DoesNotFitError: all of it together exceeds `limit_tokens`.
    """
    tokens = (len(material.context.ids), question_tokens, answer_tokens)
    if limit_tokens is not None and sum(tokens) > limit_tokens:
        hint = "ask a shorter question, or lower --max-new-tokens"
        raise _too_much(*tokens, limit_tokens, hint)


def _too_much(documents: int, question: int, answer: int, limit: int, hint: str) -> DoesNotFitError:
    """The error about so many tokens."""
    return DoesNotFitError(
        f"{count(documents)} tokens of documents, {count(question)} of question and "
        f"{count(answer)} for the answer are {count(documents + question + answer)}, "
        f"the limit is {count(limit)}",
        hint,
    )


def from_session(
    store: "SessionStore", record: "SessionRecord", tokenizer: "Tokenizer"
) -> Material:
    """The context of a saved session; no document is read.

    Raises:
        SessionError: the session was not made by `hip ask`, or is damaged.
    """
    from hipcli.prompts import Context

    remembered = record.extra
    if "context" not in remembered:
        raise SessionError(
            f"session {record.id} was not made by hip ask", "ask about the documents again"
        )
    ids = store.context(record)
    context = Context.from_manifest(remembered["context"], ids, tokenizer.decode)
    return Material(context, remembered["truncated_tokens"], tuple(remembered["inputs"]))


def input_rows(corpus: "Corpus", counts: list[int]) -> tuple[dict[str, Any], ...]:
    """Rows of `inputs[]` in JSON, one per input.

    Args:
        corpus: what was read.
        counts: tokens (or words) of each document of `corpus.documents`.
    """
    counted = {
        id(document): number for document, number in zip(corpus.documents, counts, strict=True)
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


def refuse_own_output(corpus: "Corpus", output: Path | None, flag: str) -> None:
    """An answer must not replace a document it is about.

    Raises:
        UsageError: the file named by the option `flag` is one of the documents.
    """
    if output is None or not output.is_file():
        return
    for document in corpus.documents:
        path = Path(document.path)
        if path.exists() and path.samefile(output):
            raise UsageError(
                f"{flag} {output} would replace a document that is read", "name another file"
            )
