"""Where an answer comes from, as the rest of the program passes it on: light types, no search."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hipcli.prompts import Passage


@dataclass(frozen=True, slots=True)
class Finding:
    """A passage the answer rests on.

    Args:
        score: its log vote relative to the best one's; where nothing was voted, how far it is
            behind the passage that says most of the answer.
    """

    passage: "Passage"
    score: float


@dataclass(frozen=True, slots=True)
class Citation:
    """Words of the documents behind an answer, or words that the answer puts into their mouth.

    Args:
        passage: what is cited; None when the words stand in no document.
        line_start, line_end: of the quote, within the passage; 0 without one.
        quote: as it stands there, on one line.
    """

    passage: "Passage | None"
    line_start: int
    line_end: int
    quote: str

    @property
    def verified(self) -> bool:
        return self.passage is not None


@dataclass(frozen=True, slots=True)
class Grounds:
    """Where an answer comes from.

    Args:
        findings: the passages behind it, best first by votes and by what the answer says.
        citations: quotes and lines, as `find_citations` gives them.
    """

    findings: tuple[Finding, ...]
    citations: tuple[Citation, ...]


def citation_row(citation: Citation) -> dict[str, Any]:
    """A row of `citations[]` in JSON."""
    passage = citation.passage
    return {
        "path": passage.name if passage else None,
        "page": passage.page if passage else None,
        "page_label": passage.page_label if passage else None,
        "line_start": citation.line_start if passage else None,
        "line_end": citation.line_end if passage else None,
        "quote": citation.quote,
        "verified": citation.verified,
    }
