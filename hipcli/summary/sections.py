"""The parts a summary goes through: chapters, sections, files, and pieces of what has none.

Found from the context alone, so that a resumed session has the same ones as the documents read
anew. Together they hold every token of text, each exactly once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hipcli.documents import PAGED_KINDS, unit_of
from hipcli.prompts import Context, DocumentSpan, TextSpan
from hipcli.summary.headings import Heading, find_headings, title
from hipcli.terminal.formatting import plural

# A pass over a section costs a question; more than this many would take longer than reading.
MAX_SECTIONS = 96
# Sections longer than this are gone through in pieces.
MIN_PIECE_TOKENS = 4096
# Less text than this is no section of its own: a title page, a heading with nothing under it.
MIN_SECTION_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document.

    Args:
        document: index into the context's documents.
        titles: of the sections it is made of; empty for a whole file and for a mere piece of one.
        start_token, end_token: where it stands in the context.
        first, last: pages of a PDF, lines of other kinds.
        piece: which piece of its section it is and of how many; (1, 1) for all of it.
    """

    document: int
    titles: tuple[str, ...]
    start_token: int
    end_token: int
    first: int
    last: int
    piece: tuple[int, int] = (1, 1)


def find_sections(context: Context) -> list[Section]:
    """All sections of all documents, in order.

    Small ones are joined with the next where there would be too many, long ones are cut.
    """
    found: list[Section] = []
    for index in range(len(context.documents)):
        found += _of_document(context, index)
    total = sum(section.end_token - section.start_token for section in found)
    longest = max(MIN_PIECE_TOKENS, -(-total // (MAX_SECTIONS // 2)))
    cut = [piece for section in _joined(found) for piece in _pieces(context, section, longest)]
    return cut


def label(context: Context, section: Section) -> str:
    """A section for people and for the model: `Wiring`, `pages 3-7`, `notes.txt`."""
    document = context.documents[section.document]
    number, count = section.piece
    piece = f" ({number} of {count})" if count > 1 else ""
    if section.titles:
        ends = section.titles[:1] + section.titles[1:][-1:]
        return " … ".join(ends) + piece
    if count > 1:
        return place(context, section)
    return document.name


def place(context: Context, section: Section) -> str:
    """`pages 3-7` or `lines 1-40`."""
    kind = context.documents[section.document].kind
    noun = unit_of(kind) if kind in PAGED_KINDS else "line"
    if section.first == section.last:
        return f"{noun} {section.first}"
    return f"{noun}s {section.first}-{section.last}"


def describe(sections: Sequence[Section]) -> str:
    """How many there are, in how many documents."""
    documents = len({section.document for section in sections})
    return f"{plural(len(sections), 'section')} of {plural(documents, 'document')}"


def _of_document(context: Context, index: int) -> Iterator[Section]:
    spans = [span for span in context.spans if span.document == index]
    if not spans:
        return
    document = context.documents[index]
    starts = list(_starts(context, document, spans))
    if len(starts) < 2 or starts[0][0] > spans[0].start_token:
        starts = [(spans[0].start_token, ""), *starts] if len(starts) > 1 else []
    if not starts:
        yield _section(context, index, (), spans[0].start_token, spans[-1].end_token)
        return
    starts = _without_tiny(starts, spans[-1].end_token)
    ends = [*(start for start, _ in starts[1:]), spans[-1].end_token]
    for (start, name), end in zip(starts, ends, strict=True):
        yield _section(context, index, (name or "Beginning",), start, end)


def _starts(
    context: Context, document: DocumentSpan, spans: Sequence[TextSpan]
) -> Iterator[tuple[int, str]]:
    """Tokens at which sections begin, and their titles: of the highest level that divides."""
    found = list(_outlined(document, spans))
    for span in [] if len(found) > 1 else spans:
        text = context.decode(context.ids[span.start_token : span.end_token].tolist())
        for heading in find_headings(text.split("\n"), document.kind):
            found.append((_token_of_line(context, span, heading.line), heading))
    levels = sorted({heading.level for _, heading in found})
    for deepest in levels:
        chosen = [entry for entry in found if entry[1].level <= deepest]
        # A title alone at the top divides nothing.
        if len(chosen) > 2 or deepest == levels[-1]:
            yield from ((token, heading.title) for token, heading in chosen)
            return


def _outlined(document: DocumentSpan, spans: Sequence[TextSpan]) -> Iterator[tuple[int, Heading]]:
    """The sections that the document's own outline names, each from the start of its page on."""
    for entry in sorted(document.outline, key=lambda entry: entry.page):
        span = next((span for span in spans if (span.page or 0) >= entry.page), None)
        if span is not None:
            yield span.start_token, Heading(0, entry.level, title(entry.title))


def _token_of_line(context: Context, span: TextSpan, line: int) -> int:
    """The token of `span` where its line number `line`, from 0, begins."""
    lines = context.first_lines[span.start_token : span.end_token]
    first = int(lines[0]) if span.page is None else 1
    wanted = first + line if line else int(lines[0])
    return span.start_token + int(np.searchsorted(lines, wanted))


def _without_tiny(starts: Sequence[tuple[int, str]], end: int) -> list[tuple[int, str]]:
    """Headings with nothing under them give their titles to the text that follows."""
    kept: list[tuple[int, str]] = []
    for start, name in starts:
        if kept and start - kept[-1][0] < MIN_SECTION_TOKENS:
            joined = " / ".join(filter(None, (kept[-1][1], name)))
            kept[-1] = (kept[-1][0], joined)
        else:
            kept.append((start, name))
    if len(kept) > 1 and end - kept[-1][0] < MIN_SECTION_TOKENS:
        kept.pop()
    return kept


def _section(
    context: Context, index: int, titles: tuple[str, ...], start: int, end: int
) -> Section:
    first, last = _ends(context, start, end)
    return Section(index, titles, start, end, first, last)


def _ends(context: Context, start: int, end: int) -> tuple[int, int]:
    """First and last page or, without pages, line of tokens [start, end)."""
    spans = [s for s in context.spans if s.start_token < end and s.end_token > start]
    if spans and spans[0].page is not None and spans[-1].page is not None:
        return spans[0].page, spans[-1].page
    first = int(context.first_lines[start])
    return first, max(first, int(context.last_lines[end - 1]))


def _joined(sections: Sequence[Section]) -> list[Section]:
    """At most MAX_SECTIONS of them, neighbours of one document joined, the shortest first."""
    kept = list(sections)
    while len(kept) > MAX_SECTIONS:
        pairs = [
            (right.end_token - left.start_token, place)
            for place, (left, right) in enumerate(pairwise(kept))
            if left.document == right.document and left.titles and right.titles
        ]
        if not pairs:
            break
        _, at = min(pairs)
        left, right = kept[at : at + 2]
        kept[at : at + 2] = [
            replace(
                left,
                titles=left.titles + right.titles,
                end_token=right.end_token,
                last=right.last,
            )
        ]
    return kept


def _pieces(context: Context, section: Section, longest: int) -> Iterator[Section]:
    """`section`, or pieces of it of about equal length."""
    length = section.end_token - section.start_token
    count = -(-length // longest)
    if count == 1:
        yield section
        return
    borders = [section.start_token + length * number // count for number in range(count + 1)]
    for number, (start, end) in enumerate(pairwise(borders), start=1):
        first, last = _ends(context, start, end)
        yield replace(
            section,
            start_token=start,
            end_token=end,
            first=first,
            last=last,
            piece=(number, count),
        )
