"""Guesses at the next tokens of an answer: what follows its last tokens in the text it rests on.

Answers about documents quote them. So the passages that were voted for, the question and the
answer so far are searched for the answer's last tokens, and what stands behind them is proposed;
`speculation.py` checks a whole proposal in one pass. Nothing here knows a tensor or a device.

Source: prompt lookup decoding (Saxena, 2023). Where we differ: passages are searched in the order
of their votes and a quote is followed as long as it goes on; a proposal grows while proposals are
right, and after wrong ones nothing is proposed for a while, longer each time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hipcli.engine.answering.passages import choose_passages
from hipcli.engine.config import CPU_DRAFT_TOKENS, GPU_DRAFT_TOKENS

# What is looked for: the longest of these that is found.
GRAMS = (3, 2)

# Passages that are searched hold so many tokens together.
DRAFT_EVIDENCE_TOKENS = 2048

# After a wrong proposal so many steps at most go without one.
MOST_REST = 32

# Stands behind each text; no token has this id.
_END = -1


def draft_tokens(asked: int | None, backend: str) -> int:
    """Tokens of a proposal at most: what was asked for, or the default of the kernels' backend."""
    if asked is not None:
        return asked
    return CPU_DRAFT_TOKENS if backend == "cpu" else GPU_DRAFT_TOKENS


def evidence_texts(
    context_ids: np.ndarray, ranking: list[int], span: tuple[int, int]
) -> list[list[int]]:
    """Tokens of the passages around the pages with most votes, the best one first.

    Args:
        context_ids: int32 [N], the whole context.
        ranking: its pages, most votes first.
        span: first and end token of what they are taken from.
    """
    passages = choose_passages(
        ranking, first_token=span[0], end_token=span[1], budget_tokens=DRAFT_EVIDENCE_TOKENS
    )
    return [context_ids[passage.start : passage.end].tolist() for passage in reversed(passages)]


@dataclass(slots=True)
class Drafter:
    """Proposes tokens for one answer.

    Args:
        most: tokens of a proposal at most; it begins with half of them.
        ends: tokens that end an answer: nothing is proposed behind them.

    Attributes:
        drafted: tokens proposed so far.
        accepted: how many of them were right.
    """

    most: int
    ends: frozenset[int] = frozenset()
    drafted: int = 0
    accepted: int = 0
    _text: list[int] = field(default_factory=list)
    # For each length of GRAMS, the place behind the first of each run of so many tokens.
    _places: dict[tuple[int, ...], int] = field(default_factory=dict)
    # Where the answer's last token is followed at the moment.
    _at: int | None = None
    _length: int = field(init=False)
    _misses: int = 0
    _rest: int = 0

    def __post_init__(self) -> None:
        self._length = (self.most + 1) // 2

    def add(self, sources: Iterable[Sequence[int]]) -> None:
        """Texts to guess from, the best one first; the last one is what the answer goes on from."""
        for source in sources:
            if self._text:
                self._text.append(_END)
            for token in source:
                self._append(int(token))

    def push(self, token: int) -> None:
        """Take in the next token of the answer."""
        follows = self._at is not None and self._text[self._at] == token
        self._at = self._at + 1 if follows and self._at is not None else None
        self._append(token)

    def _append(self, token: int) -> None:
        """Put a token behind the text; what it follows can now be found."""
        place = len(self._text)
        for length in GRAMS:
            if place >= length:
                self._places.setdefault(tuple(self._text[place - length :]), place)
        self._text.append(token)

    def propose(self, room: int) -> list[int]:
        """Tokens that may come next, at most `room` of them; often none."""
        if self._rest:
            self._rest -= 1
            return []
        draft = self._behind(self._at, room)
        if not draft:
            self._at = self._found()
            draft = self._behind(self._at, room)
        return draft

    def _found(self) -> int | None:
        """The place behind the last tokens of the text where they stood before."""
        for length in GRAMS:
            place = self._places.get(tuple(self._text[-length:]))
            if place is not None:
                return place
        return None

    def _behind(self, place: int | None, room: int) -> list[int]:
        """What stands there, up to the end of that text or of an answer."""
        draft: list[int] = []
        if place is None:
            return draft
        for token in self._text[place : place + min(room, self._length)]:
            if token == _END:
                break
            draft.append(token)
            if token in self.ends:
                break
        return draft

    def judge(self, drafted: int, accepted: int) -> None:
        """Learn that of so many proposed tokens the first `accepted` were right."""
        self.drafted += drafted
        self.accepted += accepted
        if accepted:
            self._misses = 0
            whole = accepted == drafted
            self._length = min(self.most, 2 * self._length if whole else accepted + 1)
        elif drafted:
            self._misses += 1
            self._length = (self._length + 1) // 2
            self._rest = min(2 ** (self._misses - 1) - 1, MOST_REST)
