"""Jupyter notebooks: cells in order, long outputs cut, images named instead of shown.

Each cell becomes a `Page` whose label is the kind of the cell, so that an answer can cite "cell 7,
line 3" in the way Jupyter shows it; the lines of the JSON file mean nothing to anybody.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from hipcli.documents import text_reader
from hipcli.documents.content import Content, Hints, join_parts
from hipcli.documents.decode import Decoded, decode, drop_surrogates, normalize_newlines

# Characters of all outputs of one cell.
MAX_OUTPUT_CHARS = 2000
_CELL_TYPES = ("code", "markdown", "raw", "heading")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_DATA_IMAGE = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=\s]{64,}")


def read(data: bytes, hints: Hints) -> Content:
    """Read a notebook of format 3 or 4; what is no notebook is read as the text it is.

    Raises:
        Refusal: binary data, or no cell has anything in it.
    """
    decoded = decode(data, hints.encoding)
    cells = _cells(decoded.text)
    if cells is None:
        content = text_reader.read(data, hints)
        warning = ("notebook_damaged", "not a valid notebook; read as plain text")
        return Content(
            text=content.text,
            encoding=content.encoding,
            partial=content.partial,
            warnings=(warning, *content.warnings),
        )
    return _join(decoded, [_render(cell) for cell in cells])


def _join(decoded: Decoded, rendered: list[tuple[str, str]]) -> Content:
    """The cells' (kind, text) one after another, as pages."""
    text, pages = join_parts(rendered)
    if not any(page.status == "text" for page in pages):
        raise text_reader.blank()
    return Content(
        text=text,
        pages=pages,
        encoding=decoded.encoding,
        partial=decoded.undecodable > 0,
        warnings=text_reader.decoding_warnings(decoded, text),
    )


def _cells(text: str) -> list[dict[str, Any]] | None:
    """The cells of a notebook, None when the text is none."""
    try:
        notebook = json.loads(text)
    # json raises RecursionError for brackets nested without end.
    except (ValueError, RecursionError):
        return None
    if not isinstance(notebook, dict):
        return None
    cells = notebook.get("cells")
    if cells is None and isinstance(notebook.get("worksheets"), list):
        # Format 3 keeps its cells one floor lower.
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    if not isinstance(cells, list):
        return None
    return [cell for cell in cells if isinstance(cell, dict)]


def _render(cell: dict[str, Any]) -> tuple[str, str]:
    """A cell's kind and what the model reads of it."""
    cell_type = cell.get("cell_type")
    # Format 3 called the source of code "input".
    source = _DATA_IMAGE.sub("[image]", _text(cell.get("source", cell.get("input", ""))))
    source = source.rstrip("\n")
    outputs = "\n".join(_outputs(_list(cell.get("outputs"))))
    if outputs:
        source += f"\n[output]\n{_cap(outputs)}"
    return (cell_type if cell_type in _CELL_TYPES else "raw"), source


def _outputs(outputs: list[Any]) -> Iterator[str]:
    for output in outputs:
        if not isinstance(output, dict):
            continue
        text = _output(output).strip("\n")
        if text:
            yield text


def _output(output: dict[str, Any]) -> str:
    """The text of one output: a stream, a value, an image, an error."""
    if output.get("output_type") in ("error", "pyerr"):
        # The traceback repeats the code and is mostly escape sequences; name and value say it.
        return f"{_text(output.get('ename'))}: {_text(output.get('evalue'))}"
    if output.get("output_type") == "stream":
        return _text(output.get("text"))
    data = output.get("data")
    # Format 3 has the media types as keys of the output itself, in short.
    data = data if isinstance(data, dict) else output
    image = next((str(key) for key in data if re.match(r"image/|png$|jpeg$|svg$", str(key))), None)
    if image is not None:
        return f"[image: {image}]"
    for key in ("text/plain", "text/markdown", "text", "text/html", "text/latex"):
        if key in data:
            return _DATA_IMAGE.sub("[image]", _text(data[key]))
    return ""


def _cap(text: str) -> str:
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    cut = len(text) - MAX_OUTPUT_CHARS
    return f"{text[:MAX_OUTPUT_CHARS]}\n[output cut: {cut:,} more characters]"


def _text(value: Any) -> str:
    """A notebook's text field: a string, or a list of them, made fit for a document."""
    if isinstance(value, list):
        value = "".join(part for part in value if isinstance(part, str))
    if not isinstance(value, str):
        return ""
    return drop_surrogates(normalize_newlines(_ANSI.sub("", value)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
