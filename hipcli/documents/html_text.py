"""HTML as text: headings, lists and tables as in Markdown, no scripts, no styles, no markup.

By the parser of Python's own library, which reads whatever browsers do and holds no tree, so depth
costs nothing.
"""

import re
from collections.abc import Callable
from html.parser import HTMLParser

# Nothing in these is meant for readers. What is not closed ends with its parent's text at worst.
_UNSEEN = {"script", "style", "template", "svg", "iframe"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = {"p", "div", "section", "article", "header", "footer", "main", "aside", "nav", "dl"}
_PARAGRAPHS |= {"figure", "figcaption", "address", "form", "fieldset", "details", "table", "body"}
_PARAGRAPHS |= {"ul", "ol", "blockquote", "pre", "title"}
_LINES = {"br", "li", "tr", "dt", "dd", "hr", "option", "summary", "legend", "caption"}
_CELLS = {"td", "th"}
# Deeper lists are indented no more.
_MAX_INDENT = 8
_SPACES = re.compile(r"[ \t\r\n\f]+")
# Tags and comments without an end: each costs a look through all that is left of the page.
_MAX_UNCLOSED = 10


def html_to_text(html: str) -> tuple[str, str]:
    """The text of a page, and its title (empty without one).

    Args:
        html: decoded; anything at all.
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.text(), reader.title


class _Reader(HTMLParser):
    """Collects lines; `_line` is the one being written."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._lines: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._unseen: list[str] = []
        self._lists: list[int | None] = []
        self._in_title = False
        self._preformatted = 0
        self._cells = 0
        self._unclosed = 0

    def text(self) -> str:
        """All lines; never two empty ones in a row."""
        self._end_line()
        lines: list[str] = []
        for line in self._lines:
            if line or (lines and lines[-1]):
                lines.append(line)
        return "\n".join(lines).strip("\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen:
            if tag == self._unseen[-1]:
                self._unseen.append(tag)
            return
        if tag in _UNSEEN:
            self._unseen.append(tag)
            return
        self._block(tag)
        if tag in _HEADINGS:
            self._empty_line()
            self._prefix = "#" * _HEADINGS[tag] + " "
        elif tag in ("ul", "ol"):
            self._lists.append(0 if tag == "ol" else None)
        elif tag == "li":
            self._prefix = self._marker()
        elif tag in _CELLS:
            if self._cells:
                self._line.append(" | ")
            self._cells += 1
        elif tag == "img":
            words = next((value for name, value in attrs if name == "alt" and value), "")
            if words:
                self.handle_data(f"[image: {words}]")
        self._in_title = self._in_title or tag == "title"
        self._preformatted += tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # In XHTML "<script/>" is complete; otherwise a browser takes it for an opening tag.
        if tag not in _UNSEEN:
            self.handle_starttag(tag, attrs)
            if tag not in ("br", "hr", "img"):
                self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            if tag == self._unseen[-1]:
                self._unseen.pop()
            elif tag == "body":
                self._unseen.clear()
            return
        self._block(tag)
        if tag in _HEADINGS:
            self._empty_line()
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag == "title":
            self._in_title = False
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if self._in_title and not self.title:
            self.title = " ".join(data.split())
        if not self._preformatted:
            self._line.append(_SPACES.sub(" ", data))
            return
        *whole, rest = data.replace("\r\n", "\n").split("\n")
        for line in whole:
            self._line.append(line)
            self._end_line(keep=True)
        self._line.append(rest)

    def unknown_decl(self, data: str) -> None:
        # XHTML may put its text so; nothing else that begins like it is text.
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def parse_html_declaration(self, i: int) -> int:
        if self.rawdata.startswith("<![", i) and not self.rawdata.startswith("<![CDATA[", i):
            # A browser takes it for a comment; Python's parser knows Word's alone, and fails.
            return self._closed(self.parse_bogus_comment, i)
        return self._closed(super().parse_html_declaration, i)

    def parse_starttag(self, i: int) -> int:
        return self._closed(super().parse_starttag, i)

    def parse_endtag(self, i: int) -> int:
        return self._closed(super().parse_endtag, i)

    def parse_pi(self, i: int) -> int:
        return self._closed(super().parse_pi, i)

    def parse_comment(self, i: int, report: bool = True) -> int:
        return self._closed(super().parse_comment, i)

    def _closed(self, parse: Callable[[int], int], i: int) -> int:
        """Where the markup at `i` ends; below 0 where it does not, or too many before it did not.

        Nothing is lost by that: what has no end is shown as it stands.
        """
        if self._unclosed >= _MAX_UNCLOSED:
            return -1
        end = parse(i)
        self._unclosed += end < 0
        return end

    def _block(self, tag: str) -> None:
        """What begins or ends here begins on a line of its own."""
        if tag in _PARAGRAPHS and not (self._cells and tag != "table"):
            self._end_line()
            if tag not in ("ul", "ol") or not self._lists:
                self._empty_line()
        elif tag in _LINES or tag in _HEADINGS:
            if self._cells and tag not in ("tr", "hr"):
                # A line within a cell would tear its row apart.
                self._line.append(" ")
            else:
                self._end_line()

    def _marker(self) -> str:
        if not self._lists:
            return "- "
        indent = "  " * min(len(self._lists) - 1, _MAX_INDENT)
        number = self._lists[-1]
        if number is None:
            return f"{indent}- "
        self._lists[-1] = number + 1
        return f"{indent}{number + 1}. "

    def _end_line(self, keep: bool = False) -> None:
        """Close the line being written; an empty one counts only where `keep`."""
        text = "".join(self._line)
        text = text.rstrip() if self._preformatted or keep else _SPACES.sub(" ", text).strip()
        self._line.clear()
        self._cells = 0
        if text.strip(" |"):
            self._lines.append(self._prefix + text)
            self._prefix = ""
        elif keep:
            self._lines.append("")

    def _empty_line(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")
