"""PowerPoint files: a part for each slide, its label the slide's title."""

import io
from collections.abc import Iterator
from typing import Any

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"


def parts(data: bytes) -> Iterator[tuple[str, str]]:
    """Title and text of each slide, in order, with the speaker's notes."""
    import pptx

    for slide in pptx.Presentation(io.BytesIO(data)).slides:
        title = slide.shapes.title
        label = " ".join(title.text_frame.text.split()) if title is not None else ""
        lines = [line for shape in slide.shapes for line in _lines(shape, title)]
        lines += [line for part in _diagrams(slide) for line in _paragraphs(part)]
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            lines += ["[notes]", notes] if notes else []
        yield label[:120], "\n".join(line.replace("\v", "\n") for line in lines)


def _lines(shape: Any, title: Any) -> Iterator[str]:
    """The text of a shape; of a group that of its shapes."""
    if hasattr(shape, "shapes"):
        for inner in shape.shapes:
            yield from _lines(inner, title)
    elif getattr(shape, "has_table", False) and shape.has_table:
        for row in shape.table.rows:
            yield " | ".join(" ".join(cell.text.split()) for cell in row.cells)
    elif getattr(shape, "has_chart", False) and shape.has_chart:
        yield from _paragraphs(shape.chart.part.element)
    elif shape.has_text_frame and shape.text_frame.text.strip():
        own = title is not None and shape.shape_id == title.shape_id
        text = shape.text_frame.text.strip()
        yield f"# {' '.join(text.split())}" if own else text


def _diagrams(slide: Any) -> Iterator[Any]:
    """The roots of what SmartArt says, which lies beside the slide."""
    from pptx.oxml import parse_xml

    for relation in slide.part.rels.values():
        if not relation.is_external and relation.reltype.endswith("/diagramData"):
            yield parse_xml(relation.target_part.blob)


def _paragraphs(root: Any) -> Iterator[str]:
    for paragraph in root.iter(f"{_A}p"):
        text = "".join(run.text or "" for run in paragraph.iter(f"{_A}t"))
        if text.strip():
            yield text
