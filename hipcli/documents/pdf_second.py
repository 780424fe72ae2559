"""The second parser of PDFs, pypdf: what pdfium does not tell, and files that it gives up on.

Runs in the child process only. pypdf is slow and is imported when it is needed.
"""

import io
from collections.abc import Iterator
from typing import Any

from hipcli.documents.pdf_links import MAX_LINKS, readable_target

# Of one page; a form that says more is hostile.
_MAX_FIELDS = 10_000
_PASSWORD_FLAG = 1 << 13


def open_reader(data: bytes, password: str | None) -> Any:
    """A pypdf reader, or None when the password does not open the file."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return reader if password is not None and reader.decrypt(password) else None
    return reader


def page_labels(reader: Any, num_pages: int) -> list[str | None]:
    """The label of each page, None where the file has none."""
    try:
        labels: list[str | None] = list(reader.page_labels)
    # Broken label trees are common in files that need repair.
    except Exception:
        labels = []
    return (labels + [None] * num_pages)[:num_pages]


def lacks_content(page: Any) -> bool:
    """Whether what a page says is drawn on it is not in the file."""
    if "/Contents" not in page:
        return False
    content = page.raw_get("/Contents").get_object()
    parts = content if isinstance(content, list) else [content]
    # An object that is not there is None.
    return bool(parts) and all(part is None or part.get_object() is None for part in parts)


def web_links(page: Any) -> list[list[str]]:
    """Targets of a page's links out of the document; the words they lie on are not known."""
    links: list[list[str]] = []
    for annotation in _annotations(page):
        if "/A" not in annotation or len(links) >= MAX_LINKS:
            continue
        action = annotation["/A"]
        if "/URI" in action:
            links += [["", target] for target in readable_target(str(action["/URI"]))]
    return links


def form_fields(page: Any) -> list[list[str]]:
    """Names and values of a page's form fields that are filled in, in the page's order."""
    fields: list[list[str]] = []
    for annotation in _annotations(page):
        if annotation.get("/Subtype") != "/Widget" or len(fields) >= _MAX_FIELDS:
            continue
        name, value, secret = _field(annotation)
        if value and not secret and [name, value] not in fields[-1:]:
            fields.append([name, value])
    return fields


def _annotations(page: Any) -> Iterator[Any]:
    # pypdf's `[]` looks up what a reference points to, its `get` does not.
    if "/Annots" in page:
        for reference in page["/Annots"]:
            yield reference.get_object()


def _field(annotation: Any) -> tuple[str, str, bool]:
    """Full name and value of a widget's field, and whether it holds a password."""
    names, value, flags, node = [], None, 0, annotation
    # Fields inherit from their parents; the bound ends a circle of them.
    for _ in range(32):
        if "/T" in node:
            names.append(str(node["/T"]))
        if value is None and "/V" in node:
            value = node["/V"]
        if not flags and "/Ff" in node:
            flags = int(node["/Ff"])
        if "/Parent" not in node:
            break
        node = node["/Parent"].get_object()
    return ".".join(reversed(names)), _field_value(value), bool(flags & _PASSWORD_FLAG)


def _field_value(value: Any) -> str:
    value = value.get_object() if value is not None else ""
    if isinstance(value, list):
        return ", ".join(str(item.get_object()) for item in value)
    if isinstance(value, dict):
        # A signature; its value is binary.
        return ""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # Names ("/Yes") are states of check boxes and radio buttons.
    return "" if text == "/Off" else text.removeprefix("/")
