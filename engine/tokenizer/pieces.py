"""Cutting a long text into pieces that are encoded one by one.

A tokenizer's time grows faster than its input when a text has no places to split (one line, one
letter). Bounded pieces make it linear, and let several cores work.
"""

import re
from collections.abc import Iterator

PIECE_CHARS = 16_384

# A lone newline between a visible character and a word: every split pattern in use ends a
# pre-token there, so the tokens are those of the whole text.
_LINE_START = re.compile(r"(?<=\S)\n(?=\w)")
# A lone space between words belongs to the word after it: cut before the space.
_WORD_END = re.compile(r"(?<=\w)(?= \w)")


def cut(text: str, limit: int = PIECE_CHARS) -> list[str]:
    """Pieces of at most `limit` characters that join to `text`.

    A piece ends after a newline, else before a space, else (no such place in its second half) at
    `limit`. Only the last kind can give other tokens than the whole text would; never other text.
    """
    bounds = [0, *_bounds(text, limit), len(text)]
    return [text[start:end] for start, end in zip(bounds, bounds[1:], strict=False) if end > start]


def _bounds(text: str, limit: int) -> Iterator[int]:
    start = 0
    while len(text) - start > limit:
        low, high = start + limit // 2, start + limit
        start = _last(_LINE_START, text, low, high) or _last(_WORD_END, text, low, high) or high
        yield start


def _last(pattern: re.Pattern[str], text: str, low: int, high: int) -> int:
    """End of the pattern's last match inside [low, high], 0 when there is none."""
    end = 0
    # One character more, so that the look-ahead at `high` sees what follows.
    for match in pattern.finditer(text, low, high + 2):
        if match.end() <= high:
            end = match.end()
    return end
