"""The little of Markdown that the sample manual is written in: blocks, emphasis, code.

Headings, paragraphs, lists without nesting, tables, boxes (`> `) and figures (`![caption](name)`),
each separated from the next by a blank line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of Markdown between blank lines.

    Args:
        kind: chapter, section, topic, text, bullets, steps, table, box or figure.
        lines: its lines without the marks that told its kind.
    """

    kind: str
    lines: tuple[str, ...]


# The first pattern that matches a block's first line decides; group 1 is what is left of each line.
BLOCK_KINDS = (
    ("topic", re.compile(r"### (.*)")),
    ("section", re.compile(r"## (.*)")),
    ("chapter", re.compile(r"# (.*)")),
    ("box", re.compile(r"> ?(.*)")),
    ("bullets", re.compile(r"- (.*)")),
    ("steps", re.compile(r"\d+\. (.*)")),
    ("table", re.compile(r"\|(.*)\|")),
    ("figure", re.compile(r"!(\[.*\]\(\w+\))")),
)


def read_blocks(markdown: str) -> Iterator[Block]:
    """The blocks of a chapter, in order.

    Raises:
        ValueError: a line does not belong to the kind its block began with.
    """
    for piece in re.split(r"\n\s*\n", markdown.strip()):
        lines = piece.splitlines()
        kind, pattern = next(
            ((kind, p) for kind, p in BLOCK_KINDS if p.fullmatch(lines[0])), ("text", None)
        )
        if pattern is None:
            yield Block("text", tuple(lines))
            continue
        matches = [pattern.fullmatch(line) for line in lines]
        if not all(matches):
            raise ValueError(f"mixed lines in a {kind} block: {piece!r}")
        yield Block(kind, tuple(match[1] for match in matches if match))


def inline(text: str) -> str:
    """Markdown's emphasis and code marks as the markup of reportlab's Paragraph."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"`([^`]+)`", r'<font name="Courier">\1</font>', text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\*([^*]+)\*", r"<i>\1</i>", text)
