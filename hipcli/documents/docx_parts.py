"""Word files: every paragraph and table of the body in order, then notes and comments.

python-docx opens the package; the text is taken from the XML itself, since its paragraphs leave out
what stands in content controls, tracked insertions and text boxes.
"""

import io
import re
from collections.abc import Iterator
from typing import Any

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
# Deleted text, and the second version of what older programs can't show.
_SKIPPED = {f"{_W}del", f"{_W}moveFrom", f"{_W}pPr", f"{_W}rPr", f"{_MC}Fallback"}
_SIGNS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_NOTES = ("footnotes", "endnotes", "comments")
_HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)


def parts(data: bytes) -> Iterator[tuple[str, str]]:
    """The whole file as one part."""
    import docx

    document = docx.Document(io.BytesIO(data))
    styles = {style.style_id: style.name or "" for style in document.styles}
    lines = list(_blocks(document.element.body, styles))
    for relation in document.part.rels.values():
        name = relation.reltype.rpartition("/")[2]
        if relation.is_external or name not in _NOTES:
            continue
        notes = [line for line in _blocks(_root(relation.target_part), styles) if line.strip()]
        lines += [f"[{name}]", *notes] if notes else []
    yield "", "\n".join(lines).strip("\n")


def _root(part: Any) -> Any:
    from docx.oxml import parse_xml

    return part.element if hasattr(part, "element") else parse_xml(part.blob)


def _blocks(element: Any, styles: dict[str, str]) -> Iterator[str]:
    """Lines of the paragraphs and tables below an element."""
    for child in element:
        if child.tag == f"{_W}p":
            yield _paragraph(child, styles)
        elif child.tag == f"{_W}tbl":
            yield from _rows(child)
            yield ""
        elif child.tag not in _SKIPPED:
            yield from _blocks(child, styles)


def _paragraph(element: Any, styles: dict[str, str]) -> str:
    text = "".join(_texts(element)).strip("\n")
    properties = element.find(f"{_W}pPr")
    if properties is None or not text.strip():
        return text
    style = properties.find(f"{_W}pStyle")
    name = styles.get(style.get(f"{_W}val", ""), "") if style is not None else ""
    heading = _HEADING.match(name)
    if heading or name == "Title":
        return "\n" + "#" * min(6, int(heading[1]) if heading else 1) + f" {text}\n"
    listed = properties.find(f"{_W}numPr") is not None or name.startswith("List ")
    return f"- {text}" if listed else text


def _rows(table: Any) -> Iterator[str]:
    for row in table.iter(f"{_W}tr"):
        if next(row.iterancestors(f"{_W}tbl")) is not table:
            # A table in a cell is part of that cell's text.
            continue
        cells = (" ".join("".join(_texts(cell)).split()) for cell in row.iter(f"{_W}tc"))
        yield " | ".join(cells)


def _texts(element: Any) -> Iterator[str]:
    """The characters below an element, in order."""
    for child in element:
        if child.tag == f"{_W}t":
            yield child.text or ""
        elif child.tag in _SIGNS:
            yield _SIGNS[child.tag]
        elif child.tag not in _SKIPPED:
            yield from _texts(child)
            if child.tag == f"{_W}p":
                yield "\n"
