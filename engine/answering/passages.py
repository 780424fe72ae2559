"""From ranked pages to the passages that are reread, and the prompt they make."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hipcli.engine.methods.configs import PAGE_TOKENS

# What surrounds a page when it is reread: a sentence may begin before it and end behind it.
TOKENS_BEFORE = 32
TOKENS_BEHIND = 64

# Pages whose tokens vote in the next round, where several rounds are asked for.
ROUND_PAGES = 2

MIN_REREAD_TOKENS = 320
MAX_REREAD_TOKENS = 4096

# Between passages that are reread; the model has seen it mean "left out" in its training text.
SEPARATOR = "\n...\n"


def reread_budget_tokens(trained_tokens: int) -> int:
    """Tokens of passages that are reread: a small part of what a model was trained on.

    A small model loses the thread in long prompts; a large one may read more.
    """
    return min(max(trained_tokens // 24, MIN_REREAD_TOKENS), MAX_REREAD_TOKENS)


@dataclass(slots=True)
class Passage:
    """Context tokens [start, end); `place` is the best place in the vote of its pages."""

    start: int
    end: int
    place: int


def choose_passages(
    ranking: list[int], *, first_token: int, end_token: int, budget_tokens: int
) -> list[Passage]:
    """Passages around the best pages, the best one last, next to the question.

    Small models read what stands next to the question best, so the order is that of the votes
    and not that of the text. Passages that touch become one.

    Args:
        ranking: pages, most votes first.
        first_token, end_token: where the documents begin and end.
        budget_tokens: how many tokens the passages may hold together; at least one is taken.
    """
    passages: list[Passage] = []
    for place, page in enumerate(ranking):
        start = max(page * PAGE_TOKENS - TOKENS_BEFORE, first_token)
        end = min((page + 1) * PAGE_TOKENS + TOKENS_BEHIND, end_token)
        touching = [p for p in passages if p.start <= end and start <= p.end]
        grown = Passage(
            min([start, *(p.start for p in touching)]),
            max([end, *(p.end for p in touching)]),
            min([place, *(p.place for p in touching)]),
        )
        others = [p for p in passages if p not in touching]
        total = sum(p.end - p.start for p in (*others, grown))
        if passages and total > budget_tokens:
            break
        passages = [*others, grown]
    return sorted(passages, key=lambda passage: passage.place, reverse=True)


def reread_prompt(
    context_ids: np.ndarray,
    prefix_tokens: int,
    ranking: list[int],
    separator_ids: Sequence[int],
    *,
    budget_tokens: int,
    span: tuple[int, int] | None = None,
) -> np.ndarray:
    """A short prompt in place of the context: scaffold and passages, a separator around each.

    Args:
        context_ids: int32 [N], the whole context.
        prefix_tokens: how many of its first tokens are scaffold and instructions.
        ranking: pages, the best one first.
        separator_ids: `SEPARATOR` in tokens.
        budget_tokens: how many tokens the passages may hold together.
        span: first and end token of what they may be taken from; all behind the prefix if None.
    """
    separator = np.array(separator_ids, dtype=context_ids.dtype)
    first_token, end_token = span or (prefix_tokens, len(context_ids))
    passages = choose_passages(
        ranking, first_token=first_token, end_token=end_token, budget_tokens=budget_tokens
    )
    parts = [context_ids[:prefix_tokens]]
    for passage in passages:
        parts += [separator, context_ids[passage.start : passage.end]]
    return np.concatenate((*parts, separator))
