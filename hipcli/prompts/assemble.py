"""Documents and question to token ids."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hipcli.documents import Corpus
from hipcli.documents.decode import drop_surrogates
from hipcli.prompts.context import Context, DocumentSpan, TextSpan
from hipcli.prompts.layout import INSTRUCTION, INTRODUCTION, QUESTION, Piece, pieces
from hipcli.prompts.token_lines import token_lines


class EncodedText(Protocol):
    """Token ids int32 [N] of a text, and the characters [start, end) of each, [N, 2]."""

    @property
    def ids(self) -> np.ndarray: ...

    @property
    def offsets(self) -> np.ndarray: ...


class ChatScaffold(Protocol):
    """The ids around the user's turn; `lead` goes with the text behind `prefix_ids`."""

    @property
    def prefix_ids(self) -> Sequence[int]: ...

    @property
    def lead(self) -> str: ...

    @property
    def suffix_ids(self) -> Sequence[int]: ...


class Between(Protocol):
    """The ids behind a text of a conversation; `lead` goes with the next text."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def lead(self) -> str: ...


class PromptTokenizer(Protocol):
    """What of `hipcli.engine.tokenizer.Tokenizer` a prompt needs."""

    def encode(self, text: str) -> EncodedText: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def scaffold(self, system: str | None) -> ChatScaffold: ...

    def turns(self, count: int) -> Sequence[Between]: ...


def assemble(corpus: Corpus, tokenizer: PromptTokenizer, system: str | None) -> Context:
    """The context: chat scaffold up to the user's turn, introduction, delimited documents.

    Every piece is encoded on its own and literally, so no text can become a control token, and a
    document's ids do not depend on the documents after it.

    Args:
        corpus: what was read.
        system: the system message, None for the model's own.
    """
    builder = _Builder(corpus)
    scaffold = tokenizer.scaffold(system)
    builder.add_ids(np.asarray(scaffold.prefix_ids, dtype=np.int32))
    builder.add_ids(tokenizer.encode(scaffold.lead + INTRODUCTION).ids)
    for piece in pieces(corpus):
        builder.add(piece, tokenizer.encode(piece.text))
    return builder.context(tokenizer)


def question_ids(
    question: str,
    tokenizer: PromptTokenizer,
    system: str | None,
    instruction: str = INSTRUCTION,
    turns: Sequence[tuple[str, str]] = (),
) -> list[int]:
    """What follows the context: the question, the end of the user's turn, the model's header.

    Args:
        question: the user's words; encoded literally, like the documents.
        system: as for `assemble`.
        instruction: how to answer; may be empty.
        turns: questions with their answers that stand between the context and this question.
    """
    if not turns:
        asked = _encode(_question_texts(question, instruction), tokenizer)
        return asked + [int(token) for token in tokenizer.scaffold(system).suffix_ids]
    before, lead = _turn_ids(turns, tokenizer, instruction)
    asked = _encode(_question_texts(question, instruction, lead), tokenizer)
    return before + asked + list(tokenizer.turns(len(turns))[-1].ids)


def _turn_ids(
    turns: Sequence[tuple[str, str]], tokenizer: PromptTokenizer, instruction: str
) -> tuple[list[int], str]:
    """Questions and answers as the model's template writes them, up to the next question, and the
    blanks before that."""
    between = tokenizer.turns(len(turns))
    ids: list[int] = []
    lead = ""
    for place, (question, answer) in enumerate(turns):
        asked, answered = between[2 * place], between[2 * place + 1]
        ids += _encode(_question_texts(question, instruction, lead), tokenizer) + list(asked.ids)
        ids += _encode([asked.lead + drop_surrogates(answer.strip())], tokenizer)
        ids += answered.ids
        lead = answered.lead
    return ids, lead


def _encode(texts: Sequence[str], tokenizer: PromptTokenizer) -> list[int]:
    return [int(token) for text in texts if text for token in tokenizer.encode(text).ids]


def question_range(
    question: str,
    tokenizer: PromptTokenizer,
    instruction: str = INSTRUCTION,
    turns: Sequence[tuple[str, str]] = (),
) -> tuple[int, int]:
    """Which of the `question_ids` of the same turns are the user's own words: [start, end)."""
    before, lead = _turn_ids(turns, tokenizer, instruction) if turns else ([], "")
    head, words, _ = _question_texts(question, "", lead)
    start = len(before) + len(tokenizer.encode(head).ids)
    return start, start + (len(tokenizer.encode(words).ids) if words else 0)


def _question_texts(question: str, instruction: str, lead: str = "") -> tuple[str, str, str]:
    """What stands before the user's words, the words, and what stands behind them.

    The blank between the first two goes with the words, where tokenizers expect it; so does
    `lead`, the template's own, with the first.
    """
    words = drop_surrogates(question.strip())
    return (
        lead + QUESTION.rstrip(),
        f" {words}" if words else "",
        f"\n{instruction}" if instruction else "",
    )


class _Builder:
    """Collects the ids and places of pieces."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.num_tokens = 0
        self.ids: list[np.ndarray] = []
        self.first_lines: list[np.ndarray] = []
        self.last_lines: list[np.ndarray] = []
        self.spans: list[TextSpan] = []
        self.mark_token: int | None = None
        num_documents = len(corpus.documents)
        self.starts = [-1] * num_documents
        self.ends = [0] * num_documents
        self.text_tokens = [0] * num_documents

    def add_ids(self, ids: np.ndarray) -> None:
        """Ids that are no text of a document."""
        self._append(ids, np.zeros(len(ids), np.int32), np.zeros(len(ids), np.int32))

    def add(self, piece: Piece, encoded: EncodedText) -> None:
        start = self.num_tokens
        if piece.is_text and len(encoded.ids):
            self._append(encoded.ids, *token_lines(piece.text, encoded.offsets))
            page = piece.page
            self.spans.append(
                TextSpan(
                    document=piece.document,
                    page=page.number if page else None,
                    page_label=page.label if page else None,
                    mark_token=start if self.mark_token is None else self.mark_token,
                    start_token=start,
                    end_token=self.num_tokens,
                )
            )
            self.text_tokens[piece.document] += len(encoded.ids)
        else:
            self.add_ids(encoded.ids)
        self.mark_token = start if piece.page and not piece.is_text else None
        if self.starts[piece.document] < 0:
            self.starts[piece.document] = start
        self.ends[piece.document] = self.num_tokens

    def context(self, tokenizer: PromptTokenizer) -> Context:
        documents = tuple(
            DocumentSpan(
                name=document.name,
                path=document.path,
                kind=document.kind,
                sha256=document.sha256,
                start_token=self.starts[index],
                end_token=self.ends[index],
                text_tokens=self.text_tokens[index],
                outline=document.outline,
            )
            for index, document in enumerate(self.corpus.documents)
        )
        return Context(
            ids=np.concatenate(self.ids).astype(np.int32, copy=False),
            documents=documents,
            spans=tuple(self.spans),
            first_lines=np.concatenate(self.first_lines),
            last_lines=np.concatenate(self.last_lines),
            decode=tokenizer.decode,
        )

    def _append(self, ids: np.ndarray, first_lines: np.ndarray, last_lines: np.ndarray) -> None:
        self.ids.append(ids)
        self.first_lines.append(first_lines)
        self.last_lines.append(last_lines)
        self.num_tokens += len(ids)
