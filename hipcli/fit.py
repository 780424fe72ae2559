"""What `--fit` does with more tokens than fit. Without it hip stops; nothing is cut silently."""

from dataclasses import dataclass

from hipcli.engine.errors import DoesNotFitError
from hipcli.formatting import count


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens [start, end) of the whole context are left out; `start == end` leaves out none."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        return self.end - self.start

    def whole(self, start: int, end: int) -> list[tuple[int, int]]:
        """Tokens [start, end) of the cut context as spans of the whole one."""
        spans = []
        if start < self.start:
            spans.append((start, min(end, self.start)))
        if end > self.start:
            spans.append((max(start, self.start) + self.tokens, end + self.tokens))
        return spans


def plan(
    context_tokens: int,
    fixed_tokens: int,
    question_tokens: int,
    answer_tokens: int,
    limit: int | None,
    mode: str,
) -> Cut:
    """Decides which tokens of the context are left out.

    Args:
        context_tokens: scaffold and documents.
        fixed_tokens: the scaffold at the start, which is never cut.
        question_tokens: the rest of the prompt.
        answer_tokens: room reserved for the answer.
        limit: tokens that fit; None for no limit.
        mode: error, head (keep the start), tail (keep the end), middle (keep both ends).

    Raises:
        DoesNotFitError: too much with `error`, or question and answer alone are too much.
    """
    total = context_tokens + question_tokens + answer_tokens
    if limit is None or total <= limit:
        return Cut(context_tokens, context_tokens)
    kept = limit - question_tokens - answer_tokens - fixed_tokens
    if kept <= 0:
        raise DoesNotFitError(
            f"question and answer take {count(question_tokens + answer_tokens)} tokens, "
            f"the limit is {count(limit)}",
            "ask for a shorter answer with --max-new-tokens, or raise --context-limit",
        )
    if mode == "error":
        raise DoesNotFitError(
            f"{count(context_tokens)} tokens of documents, {count(question_tokens)} of question "
            f"and {count(answer_tokens)} for the answer are {count(total)}, "
            f"the limit is {count(limit)}",
            "give less, raise --context-limit, or cut with --fit head, tail or middle",
        )
    at_start = {"head": kept, "tail": 0, "middle": kept // 2}[mode]
    return Cut(fixed_tokens + at_start, context_tokens - (kept - at_start))
