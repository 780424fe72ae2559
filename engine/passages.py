"""From voted pages to the passages that are reread."""

from dataclasses import dataclass

from hipcli.engine.store.pages import PAGE_TOKENS

# What surrounds a page when it is reread: a sentence may begin before it and end behind it.
TOKENS_BEFORE = 32
TOKENS_BEHIND = 64


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
