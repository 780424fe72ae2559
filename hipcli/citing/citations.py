"""Where an answer comes from: what it quotes, where it says so, and what the heads voted for.

Everything is looked up in the documents' own text. What the model quotes and no document says is
marked as not verified; people never see it as a citation.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from hipcli.citing.grounds import Citation, Finding
from hipcli.documents import unit_of
from hipcli.prompts.quoting import find_quote, passage_of_lines, whole_lines

if TYPE_CHECKING:
    from hipcli.prompts import Context, Passage, TextSpan

# A line that is longer is cited by the sentence in it that says it.
_MAX_QUOTE_CHARS = 240
# Fewer words between quotation marks may be irony, a title, a name: no claim to be checked.
_CLAIM_WORDS = 3
_MAX_FROM_ANSWER = 32
_QUOTED = re.compile(
    r'"([^"\n]{3,400})"|“([^”]{3,400})”|„([^“”]{3,400})[“”]|«([^»]{3,400})»|`([^`\n]{3,400})`'
    r"|^> ?(.{3,400})$",
    re.MULTILINE,
)
_MARK = re.compile(
    r"\b(page|pp?\.|cell|slide|sheet|chapter|line)s?\s{0,2}(\d{1,7})(?:\s?[-–]\s?(\d{1,7}))?",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_WORD = re.compile(r"\w+")


def find_citations(
    question: str, answer: str, context: "Context", findings: Sequence[Finding]
) -> list[Citation]:
    """The citations of an answer: first its own quotes and marks, then its evidence, best first.

    Args:
        findings: the passages that the heads voted for.
    """
    found = [*_quotes(answer, context, findings), *_marks(answer, context)]
    wanted = _Wanted(question, answer)
    for finding in findings:
        if not any(_covers(finding.passage, citation) for citation in found):
            found.append(wanted.citation(context, finding.passage))
    return list(dict.fromkeys(found))


def _quotes(answer: str, context: "Context", findings: Sequence[Finding]) -> Iterator[Citation]:
    """What the answer sets in quotation marks."""
    passages = [finding.passage for finding in findings]
    texts = (next(filter(None, match.groups())) for match in _QUOTED.finditer(answer))
    for text in list(dict.fromkeys(texts))[:_MAX_FROM_ANSWER]:
        found = find_quote(context, text, passages)
        if found is not None:
            passage, quote = found
            yield Citation(passage, passage.line_start, passage.line_end, quote)
        elif len(text.split()) >= _CLAIM_WORDS:
            yield Citation(None, 0, 0, " ".join(text.split()))


def _marks(answer: str, context: "Context") -> Iterator[Citation]:
    """What the answer names by page or line: verified when the words are there that it is for."""
    at = 0
    for match in list(_MARK.finditer(answer))[:_MAX_FROM_ANSWER]:
        sentence = _SENTENCE.split(answer[at : match.start()].strip(" ([\n"))[-1]
        at = match.end()
        unit = "page" if match[1].lower().startswith("p") else match[1].lower()
        spans = [span for span in context.spans if _unit(context, span) == unit]
        # "Chapter 3" of a book without such chapters is a word like others.
        if not spans:
            continue
        wanted = _Wanted("", _MARK.sub("", sentence))
        first, last = int(match[2]), int(match[3] or match[2])
        best = max(
            (
                wanted.best(context, place)
                for place in _named(context, spans, sentence, first, last)
            ),
            default=None,
            key=lambda found: found[0],
        )
        if best is not None and wanted.words and best[0] >= 0.5:
            yield best[1]
        elif len(sentence.split()) >= _CLAIM_WORDS:
            yield Citation(None, 0, 0, f"{sentence} ({match[0]})")


def _unit(context: "Context", span: "TextSpan") -> str:
    """What the places of a span are named by: "page", "cell", ..., or "line" without pages."""
    return "line" if span.page is None else unit_of(context.documents[span.document].kind)


def _named(
    context: "Context", spans: Sequence["TextSpan"], sentence: str, first: int, last: int
) -> Iterator["Passage"]:
    """The pages, or lines, that a mark may mean: of the document it names, or of any.

    Args:
        spans: those whose places have the mark's unit.
    """
    named = {
        index
        for index, document in enumerate(context.documents)
        if PurePath(document.name).name.lower() in sentence.lower()
    }
    for span in spans:
        if named and span.document not in named:
            continue
        if span.page is None:
            passage = passage_of_lines(context, span, first, last)
        elif first <= span.page <= last:
            passage = next(iter(context.locate(span.start_token, span.end_token)), None)
        else:
            continue
        if passage is not None:
            yield passage


def _covers(passage: "Passage", citation: Citation) -> bool:
    """Whether a citation cites a passage already."""
    cited = citation.passage
    return (
        cited is not None
        and (cited.path, cited.page) == (passage.path, passage.page)
        and passage.line_start <= citation.line_start <= passage.line_end
    )


class _Wanted:
    """The words by which the line of a passage is chosen that says what the answer says."""

    def __init__(self, question: str, answer: str) -> None:
        self.answer = _key(answer)
        self.words = distinctive_words(answer)
        # The question's words say where the answer may be, what only the answer says is it.
        asked = dict.fromkeys(distinctive_words(question), 1.0)
        self.weights = dict.fromkeys(self.words, 4.0) | asked

    def citation(self, context: "Context", passage: "Passage") -> Citation:
        """A passage, and the line of it that the answer is most likely from."""
        units = [
            (number, unit)
            for number, line in whole_lines(context, passage)
            for unit in _units(line)
        ] or [(passage.line_start, " ".join(passage.text.split())[:_MAX_QUOTE_CHARS])]
        counted = Counter(word for _, unit in units for word in distinctive_words(unit))

        def score(entry: tuple[int, str]) -> float:
            words = distinctive_words(entry[1])
            shared = sum(self.weights.get(word, 0.0) / counted[word] for word in words)
            said = bool(self.answer) and self.answer in _key(entry[1])
            return shared + (100.0 if said else 0.0)

        # max keeps the first of equals.
        line, quote = max(units, key=score)
        return Citation(passage, line, line, quote)

    def best(self, context: "Context", passage: "Passage") -> tuple[float, Citation]:
        """How many of the answer's words a passage has, 0 to 1, and the citation of it."""
        shared = len(self.words & distinctive_words(passage.text))
        return shared / max(1, len(self.words)), self.citation(context, passage)


def _units(line: str) -> Iterator[str]:
    """A line as it may be quoted: whole, or sentence by sentence, or cut where it has none."""
    text = " ".join(line.split())
    for unit in [text] if len(text) <= _MAX_QUOTE_CHARS else _SENTENCE.split(text):
        while unit:
            cut = len(unit)
            if cut > _MAX_QUOTE_CHARS:
                # A word of more characters than a quote may have is cut as it is.
                cut = unit.rfind(" ", 1, _MAX_QUOTE_CHARS) + 1 or _MAX_QUOTE_CHARS
            yield unit[:cut].strip()
            unit = unit[cut:]


def _key(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def distinctive_words(text: str) -> set[str]:
    """The words that tell one line from another: no short ones, but all with digits in them."""
    words = _WORD.findall(text.casefold())
    return {word for word in words if len(word) > 2 or any(map(str.isdigit, word))}
