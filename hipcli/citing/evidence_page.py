"""`--open-evidence`: question, answer and the passages behind it, as one page that needs no other.

Documents and answers are data: every character of them is escaped, and the page may load nothing.
"""

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from hipcli.citing.grounds import Citation, Grounds
from hipcli.prompts.quoting import text_of
from hipcli.terminal.report import place_in_words

if TYPE_CHECKING:
    from hipcli.prompts import Context, Passage

# Tokens shown around a passage, within its page, cell or document.
_AROUND_TOKENS = 400
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evidence</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 1rem }
mark { background: #fff3b0; color: inherit }
mark b { background: #ffd54a }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 } pre { background: #242424 }
  mark { background: #5a4d12 } mark b { background: #8a7410 } a { color: #9cf }
}
</style></head><body>
"""


def evidence_page(
    question: str,
    answer: str,
    context: "Context",
    grounds: Grounds,
) -> str:
    """The page as HTML.

    Args:
        grounds: where the answer comes from; citations that are not verified are left out.
    """
    shown = [citation for citation in grounds.citations if citation.passage is not None]
    pieces = [_HEAD, f"<h1>{escape(question)}</h1>\n<pre>{escape(answer)}</pre>\n"]
    if not shown:
        pieces.append("<p>No passages: the answer rests on none in particular.</p>\n")
    pieces += _contents(shown)
    scores = {finding.passage: finding.score for finding in grounds.findings}
    for number, citation in enumerate(shown, start=1):
        pieces += _section(number, citation, context, scores)
    return "".join([*pieces, "</body></html>\n"])


def _contents(citations: Sequence[Citation]) -> Iterator[str]:
    yield "<ol>\n"
    for number, citation in enumerate(citations, start=1):
        assert citation.passage is not None, "those without are left out"
        place = escape(place_in_words(citation.passage))
        yield f'<li><a href="#p{number}">{place}</a>: {escape(citation.quote)}</li>\n'
    yield "</ol>\n"


def _section(
    number: int, citation: Citation, context: "Context", scores: "dict[Passage, float]"
) -> Iterator[str]:
    passage = citation.passage
    assert passage is not None, "those without are left out"
    score = scores.get(passage)
    said = "quoted in the answer" if score is None else f"score {score:.2f}"
    yield f'<h2 id="p{number}">[{number}] {escape(place_in_words(passage))}</h2>\n'
    before, inside, behind = _around(context, passage)
    yield f"<p>{said}</p>\n<pre>{escape(before)}<mark>{_quoted(inside, citation.quote)}</mark>"
    yield f"{escape(behind)}</pre>\n"


def _around(context: "Context", passage: "Passage") -> tuple[str, str, str]:
    """The text before a passage, the passage, and the text behind it."""
    span = next(
        span for span in context.spans if span.start_token <= passage.start_token < span.end_token
    )
    start = max(span.start_token, passage.start_token - _AROUND_TOKENS)
    end = min(span.end_token, passage.end_token + _AROUND_TOKENS)
    return (
        text_of(context, start, passage.start_token)[0] if start < passage.start_token else "",
        text_of(context, passage.start_token, passage.end_token)[0],
        text_of(context, passage.end_token, end)[0] if passage.end_token < end else "",
    )


def _quoted(text: str, quote: str) -> str:
    """`text` escaped, with the words of the quote in bold."""
    words = r"\s+".join(re.escape(word) for word in quote.split())
    match = re.search(words, text) if words else None
    if match is None:
        return escape(text)
    bold = f"<b>{escape(match[0])}</b>"
    return escape(text[: match.start()]) + bold + escape(text[match.end() :])
