"""Words of a context found again in its documents: whole lines of passages, and quotes."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hipcli.prompts.context import Context, Passage, TextSpan

# A line is shown whole up to so many tokens on either side of a passage; some files are one line.
_MAX_LINE_TOKENS = 256
# Characters that writers and models set as they like.
_ALIKE = ("'’‘‛`´", '"“”„«»', "-‐‑‒–—−")
_GAP = re.compile(r"\s*(?:\[\s*)?(?:\.\.\.|…)(?:\s*\])?\s*")
# Of a quote with gaps; each gap more could multiply the time to search.
_MAX_PARTS = 3


def whole_lines(context: Context, passage: Passage) -> list[tuple[int, str]]:
    """The lines that a passage touches, from their start to their end: (number, text) of each."""
    span = _span_at(context, passage.start_token)
    first, last = (
        lines[span.start_token : span.end_token]
        for lines in (context.first_lines, context.last_lines)
    )
    low = span.start_token + int(np.searchsorted(last, passage.line_start, "left"))
    high = span.start_token + int(np.searchsorted(first, passage.line_end, "right"))
    low = max(low, passage.start_token - _MAX_LINE_TOKENS)
    high = min(high, passage.end_token + _MAX_LINE_TOKENS)
    text, number = text_of(context, min(low, passage.start_token), max(high, passage.end_token))
    lines = enumerate(text.split("\n"), start=number)
    inside = range(passage.line_start, passage.line_end + 1)
    return [(at, line) for at, line in lines if at in inside]


def text_of(context: Context, start_token: int, end_token: int) -> tuple[str, int]:
    """The text of tokens within one span, and the line that its first character is on.

    What is cut off a character at the ends is left out.
    """
    ids = context.ids[start_token:end_token].tolist()
    text = context.decode(ids).strip("\ufffd")
    blanks = len(text) - len(text.lstrip())
    return text, int(context.first_lines[start_token]) - text.count("\n", 0, blanks)


def find_quote(
    context: Context, quote: str, passages: Sequence[Passage]
) -> tuple[Passage, str] | None:
    """Where the words of a quote stand: as a passage of just its lines, and as they stand there.

    Case, line ends and the shapes of quotation marks and dashes do not matter; "..." in it stands
    for some words left out.

    Args:
        passages: where to look first; then all documents are searched, in order.
    """
    pattern = _pattern(quote)
    if pattern is None:
        return None
    near = [_span_at(context, passage.start_token) for passage in passages]
    # A span may be a whole book: what stands around the passages comes first.
    for passage, span in zip(passages, near, strict=True):
        start = max(span.start_token, passage.start_token - _MAX_LINE_TOKENS)
        end = min(span.end_token, passage.end_token + _MAX_LINE_TOKENS)
        found = _search(context, span, start, end, pattern)
        if found is not None:
            return found
    for span in dict.fromkeys([*near, *context.spans]):
        found = _search(context, span, span.start_token, span.end_token, pattern)
        if found is not None:
            return found
    return None


def passage_of_lines(context: Context, span: TextSpan, start: int, end: int) -> Passage | None:
    """Lines `start` to `end` of a page, cell or document; None when it has none of them."""
    first = context.first_lines[span.start_token : span.end_token]
    last = context.last_lines[span.start_token : span.end_token]
    low = span.start_token + int(np.searchsorted(last, start, "left"))
    high = span.start_token + int(np.searchsorted(first, end, "right"))
    located = context.locate(low, high) if low < high else []
    return located[0] if located else None


def _search(
    context: Context, span: TextSpan, start: int, end: int, pattern: re.Pattern[str]
) -> tuple[Passage, str] | None:
    text, number = text_of(context, start, end)
    match = pattern.search(text)
    if match is None:
        return None
    line_start = number + text.count("\n", 0, match.start())
    line_end = line_start + match[0].count("\n")
    passage = passage_of_lines(context, span, line_start, line_end)
    if passage is None:
        return None
    # A token can reach over a line's end: the lines are those of the words, not of its tokens.
    passage = replace(passage, line_start=line_start, line_end=line_end)
    return passage, " ".join(match[0].split())


def _span_at(context: Context, token: int) -> TextSpan:
    """The span that holds a token of text."""
    starts = [span.start_token for span in context.spans]
    return context.spans[int(np.searchsorted(starts, token, "right")) - 1]


def _pattern(quote: str) -> re.Pattern[str] | None:
    """What finds a quote; None when there are no words in it."""
    parts = [part.strip().rstrip(".,;:!?") for part in _GAP.split(quote)]
    parts = [part for part in parts if re.search(r"\w", part)][:_MAX_PARTS]
    if not parts:
        return None
    found = r"[\s\S]{0,400}?".join(r"\s+".join(map(_word, part.split())) for part in parts)
    before = r"(?<!\w)" if parts[0][0].isalnum() else ""
    behind = r"(?!\w)" if parts[-1][-1].isalnum() else ""
    return re.compile(before + found + behind, re.IGNORECASE)


def _word(word: str) -> str:
    return "".join(_character(character) for character in word)


def _character(character: str) -> str:
    alike = next((signs for signs in _ALIKE if character in signs), character)
    return f"[{re.escape(alike)}]" if len(alike) > 1 else re.escape(alike)
