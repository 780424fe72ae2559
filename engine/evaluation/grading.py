"""Is the answer right, and was the evidence among the pages that were found?"""

import re
from collections.abc import Sequence

from hipcli.engine.evaluation.case import Probe
from hipcli.engine.evaluation.placing import Case
from hipcli.engine.methods.configs import PAGE_TOKENS

# A page that holds less than this part of a needle does not count as having it.
MIN_PART = 1 / 3


def score(answer: str, probe: Probe) -> float:
    """Which part of the expected strings an answer holds; 0 if it holds a rival too."""
    if any(_holds(answer, rival) for rival in probe.rivals):
        return 0.0
    return sum(_holds(answer, expected) for expected in probe.answers) / len(probe.answers)


def _holds(answer: str, expected: str) -> bool:
    """Is it there as a word of its own, whatever the case?"""
    pattern = rf"(?<!\w){re.escape(expected)}(?!\w)"
    return re.search(pattern, answer, re.IGNORECASE) is not None


def needle_pages(start: int, end: int) -> frozenset[int]:
    """Pages that hold at least a third of tokens [start, end), or the largest part of them."""
    parts = {
        page: min(end, (page + 1) * PAGE_TOKENS) - max(start, page * PAGE_TOKENS)
        for page in range(start // PAGE_TOKENS, -(-end // PAGE_TOKENS))
    }
    large = {page for page, part in parts.items() if part >= MIN_PART * (end - start)}
    return frozenset(large or {max(parts, key=lambda page: parts[page])})


def asked_pages(case: Case, probe: Probe) -> list[frozenset[int]]:
    """The pages of each needle that a probe is about."""
    return [needle_pages(*case.needles[number]) for number in probe.needles]


def recall(ranking: Sequence[int], wanted: Sequence[frozenset[int]], count: int) -> float | None:
    """Which part of the needles the best `count` pages hold, as many as could be.

    Args:
        ranking: pages, the best one first.
        wanted: pages of each needle; any of them will do.
        count: how many pages count.

    Returns:
        0 to 1, or None without needles. Of several needles the best page can hold one: found
        needles are divided by the smaller of `count` and their number.
    """
    if not wanted:
        return None
    best = set(ranking[:count])
    found = sum(bool(pages & best) for pages in wanted)
    return min(1.0, found / min(count, len(wanted)))
