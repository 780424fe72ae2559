"""From the passages that the heads voted for to the grounds of an answer, best first.

Votes are for pages of 64 tokens and were cast before there was an answer. Once it is there, its own
words tell more: a passage that says what the answer says goes before one that does not, and one
that ends just before it is grown by what the model saw around it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hipcli.citing.citations import distinctive_words, find_citations
from hipcli.citing.grounds import Finding, Grounds
from hipcli.prompts.quoting import whole_lines

if TYPE_CHECKING:
    from hipcli.prompts import Context, Passage

# What a model sees around a passage when it reads the passages again.
_TOKENS_BEFORE = 32
_TOKENS_BEHIND = 64
# All words of the answer are worth a passage with e ** 3 times the votes.
_SUPPORT_WEIGHT = 3.0
# What a grown passage must say more to be worth its lines.
_MIN_GAIN = 0.1
# A text without votes is searched by words as far as this, in passages of so many tokens.
_MAX_SEARCHED_TOKENS = 1 << 15
_PASSAGE_TOKENS = 64
_MAX_BY_WORDS = 3


def find_grounds(
    question: str, answer: str, context: "Context", findings: Sequence[Finding]
) -> Grounds:
    """Where an answer comes from: passages, best first, and the citations they give.

    Args:
        findings: the passages that the heads voted for, best first; empty for a text so short that
            there was nothing to vote about. Then the answer's words alone decide.
    """
    if findings:
        found = _by_votes_and_words(question, answer, context, findings)
    else:
        found = _by_words(question, answer, context)
    found = _told_apart(context, found)
    return Grounds(tuple(found), tuple(find_citations(question, answer, context, found)))


def _told_apart(context: "Context", findings: Sequence[Finding]) -> list[Finding]:
    """Without those of which a reader sees the same lines again: two pages may share a line."""
    seen: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        at = finding.passage
        lines = (at.name, at.page, at.line_start, at.line_end, _text(context, at))
        seen.setdefault(lines, finding)
    return list(seen.values())


class _Support:
    """How much of what only the answer says a text says too, 0 to 1.

    Args:
        texts: those that will be compared; a word that stands in few of them tells more.
    """

    def __init__(self, words: set[str], texts: Sequence[str]) -> None:
        counts = Counter(word for text in texts for word in words & distinctive_words(text))
        self._weights = {
            word: (2.0 if any(map(str.isdigit, word)) else 1.0) / count
            for word, count in counts.items()
        }
        self._total = sum(self._weights.values())

    def of(self, text: str) -> float:
        if not self._total:
            return 0.0
        said = distinctive_words(text)
        return sum(w for word, w in self._weights.items() if word in said) / self._total


def _by_votes_and_words(
    question: str, answer: str, context: "Context", findings: Sequence[Finding]
) -> list[Finding]:
    choices = [
        (finding, list(_grown(context, finding.passage)), _text(context, finding.passage))
        for finding in findings
    ]
    words = distinctive_words(answer) - distinctive_words(question)
    support = _Support(words, [text for _, _, text in choices])
    if not support.of(" ".join(words)):
        # The answer may stand just outside of all passages.
        around = [text for _, grown, _ in choices for _, text in grown]
        support = _Support(words, around)
    scored: dict[Passage, tuple[float, Finding]] = {}
    for finding, grown, text in choices:
        own = support.of(text)
        best, gained = finding.passage, own
        for passage, more in grown:
            if support.of(more) > gained + _MIN_GAIN:
                best, gained = passage, support.of(more)
        score = finding.score + _SUPPORT_WEIGHT * gained
        if best not in scored or score > scored[best][0]:
            scored[best] = score, Finding(best, finding.score)
    # Sorting keeps the order of the votes among equals.
    return [found for _, found in sorted(scored.values(), key=lambda pair: -pair[0])]


def _grown(context: "Context", passage: "Passage") -> Iterator[tuple["Passage", str]]:
    """A passage with what stands before it, behind it, or both; and the same on the next pages."""
    start = max(0, passage.start_token - _TOKENS_BEFORE)
    end = min(len(context.ids), passage.end_token + _TOKENS_BEHIND)
    ranges = ((passage.start_token, end), (start, passage.end_token), (start, end))
    for low, high in ranges:
        for grown in context.locate(low, high):
            yield grown, _text(context, grown)


def _by_words(question: str, answer: str, context: "Context") -> list[Finding]:
    """The passages of a short text that say what the answer says, by words alone."""
    passages = list(_passages(context))
    texts = [_text(context, passage) for passage in passages]
    asked = distinctive_words(question)
    said = distinctive_words(answer)
    support = _Support(said - asked or said, texts)
    # The question's words decide among passages that say the answer alike.
    about = _Support(asked, texts)
    scored = [
        (support.of(text) + 0.3 * about.of(text), passage)
        for passage, text in zip(passages, texts, strict=True)
    ]
    best = sorted(scored, key=lambda pair: -pair[0])[:_MAX_BY_WORDS]
    top = best[0][0] if best else 0.0
    return [Finding(passage, score - top) for score, passage in best if score > 0.5 * top > 0]


def _passages(context: "Context") -> Iterator["Passage"]:
    left = _MAX_SEARCHED_TOKENS
    for span in context.spans:
        for start in range(span.start_token, span.end_token, _PASSAGE_TOKENS):
            if left <= 0:
                return
            left -= _PASSAGE_TOKENS
            yield from context.locate(start, min(start + _PASSAGE_TOKENS, span.end_token))


def _text(context: "Context", passage: "Passage") -> str:
    """A passage's lines, whole: what its place in the document names."""
    return "\n".join(line for _, line in whole_lines(context, passage))
