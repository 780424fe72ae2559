"""What readers wrote on a PDF page: typed text and notes, which are no part of the page's own text.

Runs in the child process only.
"""

from typing import Any

# Of one page.
_MAX_ANNOTATIONS = 500
_MAX_NOTES = 200
_MAX_NOTE_CHARS = 4000


def notes(page: Any) -> list[str]:
    """The texts of a page's notes, in the page's order."""
    import pypdfium2.raw as raw

    wanted = {
        raw.FPDF_ANNOT_FREETEXT,
        raw.FPDF_ANNOT_TEXT,
        raw.FPDF_ANNOT_HIGHLIGHT,
        raw.FPDF_ANNOT_UNDERLINE,
        raw.FPDF_ANNOT_STRIKEOUT,
        raw.FPDF_ANNOT_STAMP,
    }
    found: list[str] = []
    for index in range(min(raw.FPDFPage_GetAnnotCount(page), _MAX_ANNOTATIONS)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        if raw.FPDFAnnot_GetSubtype(annotation) in wanted and len(found) < _MAX_NOTES:
            text = " ".join(_contents(raw, annotation).split())
            if text:
                found.append(text[:_MAX_NOTE_CHARS])
        raw.FPDFPage_CloseAnnot(annotation)
    return found


def _contents(raw: Any, annotation: Any) -> str:
    import ctypes

    # Bytes of UTF-16 with the terminating NUL.
    size = raw.FPDFAnnot_GetStringValue(annotation, b"Contents", None, 0)
    if not 2 < size <= 8 * _MAX_NOTE_CHARS:
        return ""
    buffer = (ctypes.c_ushort * (size // 2))()
    raw.FPDFAnnot_GetStringValue(annotation, b"Contents", buffer, size)
    return bytes(buffer).decode("utf-16-le", "replace").rstrip("\0")
