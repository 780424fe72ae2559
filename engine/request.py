"""What a front end asks of the engine: token ids in, nothing of the terminal."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hipcli.engine.config import ANSWER_MODES, CacheConfig, GenerationConfig


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A document in a session's identity: the name the model reads, and the hash of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class AskRequest:
    """A question about a context.

    Args:
        context_ids: int32 [N], everything before the question: chat scaffold and documents.
        question_ids: the rest of the prompt, at least one token.
        question_span: which of the question's tokens are the asker's own words, [start, end); the
            rest is scaffold, which every question shares. None means all of them.
        prefix_tokens: how many of the context's first tokens are scaffold and instructions; they
            open the prompt again when passages are reread.
        focus: context tokens [start, end) that the question is about: only they are voted for,
            shared and reread. None means all behind the prefix.
        inputs: the documents, in order.
        answer: auto, attend, share or reread.
        rounds: how often is voted: from the second time on the best passages vote too, for a
            question whose answer takes several facts. 0, with "attend" alone, looks for no
            passages and not at every key.
        evidence_count: how many pages with most votes the result names.
        generation: how the answer is generated.
        cache: where the context is saved.
        extra: JSON-able, kept in the session's manifest for the caller.
    """

    context_ids: np.ndarray
    question_ids: list[int]
    prefix_tokens: int
    inputs: tuple[InputRecord, ...] = ()
    question_span: tuple[int, int] | None = None
    focus: tuple[int, int] | None = None
    answer: str = "auto"
    rounds: int = 1
    evidence_count: int = 8
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.answer not in ANSWER_MODES:
            raise ValueError(f"answer is {self.answer!r}; it must be one of {ANSWER_MODES}")
        if self.rounds < (0 if self.answer == "attend" else 1):
            raise ValueError(f"rounds is {self.rounds}; 0 is for attend, less for none")
        if len(self.context_ids) == 0 or not self.question_ids:
            raise ValueError("context_ids and question_ids must not be empty")
        start, end = self.own_words
        if not 0 <= start < end <= len(self.question_ids):
            raise ValueError("question_span must be a part of question_ids")
        if not 0 <= self.prefix_tokens <= len(self.context_ids):
            raise ValueError("prefix_tokens must lie within the context")
        first, last = self.votable
        if not self.prefix_tokens <= first <= last <= len(self.context_ids):
            raise ValueError("focus must lie between the prefix and the end of the context")

    @property
    def own_words(self) -> tuple[int, int]:
        """`question_span`, or all tokens of the question."""
        return self.question_span or (0, len(self.question_ids))

    @property
    def votable(self) -> tuple[int, int]:
        """`focus`, or all of the context behind the prefix."""
        return self.focus or (self.prefix_tokens, len(self.context_ids))
