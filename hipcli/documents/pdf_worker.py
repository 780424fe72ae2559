"""Reads one PDF in a process of its own, so that a hostile file costs one error and no more.

Run as `python -m hipcli.documents.pdf_worker`; see `child` for what goes in. Events:
    {"event": "ready"}                                    before anything is read
    {"event": "open", "pages": N, "notes": [[code, message], ...]}
    {"event": "outline", "entries": [[title, level, page index], ...]}   from the first page's child
    {"event": "page", "index", "text": str | null, "label", "garbled", "image_share", "objects",
        "links": [[words, target], ...], "notes": [text, ...]}
    {"event": "extra", "index", "text": str | null, "fields": [[name, value], ...], "missing": bool}
    {"event": "end", "xfa": bool} or {"event": "error", "code", "message"}
Pages come from pdfium and as soon as they are read, so that what ends this process costs one page.
Then pypdf adds form values, and a second opinion on pages where pdfium found nothing or garbage.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

from hipcli.documents import pdf_second
from hipcli.documents.child import emit, serve
from hipcli.documents.pdf_columns import Box, reading_order
from hipcli.documents.pdf_damage import damage
from hipcli.documents.pdf_links import web_links
from hipcli.documents.pdf_notes import notes
from hipcli.documents.pdf_text import HYPHEN_MARK, is_garbled

# Pages that pypdf, which is slow, looks at again.
_SECOND_OPINIONS = 200
# Characters of a page that are asked for their Unicode map.
_MAP_SAMPLES = 200
# Text shorter than this may be a header line over a scan.
_SHORT_TEXT = 200
_MAX_OBJECTS = 5000
# Fewer characters are no two columns of prose.
_MIN_COLUMN_CHARS = 400
# Bookmarks; more are no help, or go in circles.
_MAX_OUTLINE = 5000
_MAX_OUTLINE_DEPTH = 6
_MAX_TITLE_CHARS = 200


def main() -> None:
    """Serve one request and exit."""
    serve(_serve)


def _serve(data: bytes, request: dict[str, Any], out: BinaryIO) -> None:
    if request["engine"] == "pdfium" and _serve_pdfium(data, request, out):
        return
    _serve_pypdf(data, request, out)


def _serve_pdfium(data: bytes, request: dict[str, Any], out: BinaryIO) -> bool:
    """Pages by pdfium; False when it cannot open the file at all."""
    import pypdfium2 as pdfium

    try:
        pdf = _open_pdfium(data, request["password"])
        num_pages = len(pdf)
    except pdfium.PdfiumError as error:
        codes = {pdfium.raw.FPDF_ERR_PASSWORD: "password", pdfium.raw.FPDF_ERR_SECURITY: "security"}
        if error.err_code not in codes:
            return False
        emit(out, event="error", code=codes[error.err_code], message=str(error))
        return True
    whole = not request["first_page"]
    emit(out, event="open", pages=num_pages, notes=_file_notes(data, pdf) if whole else [])
    if whole:
        emit(out, event="outline", entries=_outline(pdf))
    pages = range(request["first_page"], min(request["end_page"], num_pages))
    doubtful: dict[int, float] = {}
    for index in pages:
        page = _read_page(pdf, index)
        emit(out, event="page", index=index, **page)
        if page["garbled"] or not (page["text"] or "").strip() and page["image_share"] < 0.5:
            # Where pdfium found no map to Unicode, pypdf finds none either: it must convince.
            doubtful[index] = 1.0 if page["garbled"] else 0.0
    form_type = pdf.get_formtype()
    if form_type or doubtful:
        again = dict(itertools.islice(doubtful.items(), _SECOND_OPINIONS))
        _serve_extras(data, request, again, pages if form_type else (), out)
    xfa = form_type in (pdfium.raw.FORMTYPE_XFA_FULL, pdfium.raw.FORMTYPE_XFA_FOREGROUND)
    emit(out, event="end", xfa=xfa)
    return True


def _open_pdfium(data: bytes, password: str | None) -> Any:
    """A pdfium document; a password that was given for another file does no harm."""
    import pypdfium2 as pdfium

    try:
        return pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if password is None or error.err_code != pdfium.raw.FPDF_ERR_PASSWORD:
            raise
    return pdfium.PdfDocument(data, password=password)


def _file_notes(data: bytes, pdf: Any) -> list[tuple[str, str]]:
    """What is to be said of the file as a whole."""
    found = damage(data)
    attached = pdf.count_attachments()
    if attached:
        files = "1 file is" if attached == 1 else f"{attached:,} files are"
        found.append(("pdf_attachments", f"{files} attached to the PDF and not read"))
    return found


def _outline(pdf: Any) -> list[list[Any]]:
    """The bookmarks that lead to pages: title, level from 1, index of the page."""
    entries: list[list[Any]] = []
    try:
        for item in itertools.islice(pdf.get_toc(max_depth=_MAX_OUTLINE_DEPTH), _MAX_OUTLINE):
            # Its fifth version made methods of what were fields.
            if hasattr(item, "get_title"):
                target = item.get_dest()
                title, index = item.get_title(), target.get_index() if target else None
            else:
                title, index = item.title, item.page_index
            title = " ".join((title or "").split())[:_MAX_TITLE_CHARS]
            if title and index is not None and index >= 0:
                entries.append([title, item.level + 1, index])
    # A broken outline costs the rest of it, not the pages.
    except Exception:
        return entries
    return entries


def _read_page(pdf: Any, index: int) -> dict[str, Any]:
    """One page by pdfium. `text` is None when it cannot be read."""
    import pypdfium2 as pdfium

    try:
        page = pdf[index]
        textpage = page.get_textpage()
        text = _page_text(page, textpage)
        share, objects = _images(page) if len(text) < _SHORT_TEXT else (0.0, 0)
        result = {
            "text": text,
            "label": pdf.get_page_label(index) or None,
            "garbled": is_garbled(text, _unmapped(textpage)),
            "image_share": share,
            "objects": objects,
            "links": web_links(pdf, page, textpage),
            "notes": notes(page),
        }
        textpage.close()
        page.close()
    except (pdfium.PdfiumError, MemoryError):
        return {
            "text": None,
            "label": None,
            "garbled": False,
            "image_share": 0.0,
            "objects": 0,
            "links": [],
            "notes": [],
        }
    return result


def _page_text(page: Any, textpage: Any) -> str:
    """All text of a page; of a cropped page what is inside the crop box.

    Two pages of a book scanned together are often one page object shown twice, each time cropped
    to one half. Otherwise nothing is left out: a box that is a little off would cost text.
    """
    left, bottom, right, top = page.get_cropbox()
    media = page.get_mediabox()
    width, height = media[2] - media[0], media[3] - media[1]
    margins = (left - media[0], media[2] - right, bottom - media[1], media[3] - top)
    cropped = max(margins[:2]) > 0.2 * width or max(margins[2:]) > 0.2 * height
    # A box of next to nothing is a mistake, not a crop.
    if cropped and right - left > 0.1 * width and top - bottom > 0.1 * height:
        return textpage.get_text_bounded(left - 3, bottom - 3, right + 3, top + 3)
    return _in_columns(textpage) or textpage.get_text_range()


def _in_columns(textpage: Any) -> str:
    """The text of two mixed columns in reading order; empty when the page has none."""
    if textpage.count_chars() < _MIN_COLUMN_CHARS:
        return ""
    count = textpage.count_rects()
    if count > _MAX_OBJECTS:
        return ""
    boxes = [textpage.get_rect(index) for index in range(count)]
    lines = reading_order(boxes)
    if lines is None:
        return ""
    texts = [" ".join(_box_text(textpage, boxes[at]) for at in line) for line in lines]
    # pdfium marks hyphens at line ends only in text that it puts in order itself.
    return "\n".join(re.sub(r"(?<=[a-z])-$", HYPHEN_MARK, text) for text in texts)


def _box_text(textpage: Any, box: Box) -> str:
    left, bottom, right, top = box
    return " ".join(textpage.get_text_bounded(left, bottom, right, top).split())


def _unmapped(textpage: Any) -> float:
    """Share of sampled characters whose font has no map to Unicode."""
    import pypdfium2.raw as raw

    num_chars = textpage.count_chars()
    if num_chars <= 0:
        return 0.0
    sample = range(0, num_chars, max(1, num_chars // _MAP_SAMPLES))
    errors = sum(raw.FPDFText_HasUnicodeMapError(textpage, i) == 1 for i in sample)
    if not errors:
        return 0.0
    # Blanks that pdfium put between words are in no font.
    generated = sum(raw.FPDFText_IsGenerated(textpage, i) == 1 for i in sample)
    return errors / max(1, len(sample) - generated)


def _images(page: Any) -> tuple[float, int]:
    """Share of a page that its largest image covers, and how many things are drawn on it."""
    import pypdfium2.raw as raw

    width, height = page.get_size()
    share, objects = 0.0, 0
    for item in page.get_objects(max_depth=6):
        objects += 1
        if objects >= _MAX_OBJECTS:
            break
        if item.type == raw.FPDF_PAGEOBJ_IMAGE:
            left, bottom, right, top = item.get_bounds()
            covered = max(0.0, right - left) * max(0.0, top - bottom)
            share = max(share, covered / max(1.0, width * height))
    return min(share, 1.0), objects


def _serve_extras(
    data: bytes,
    request: dict[str, Any],
    again: dict[int, float],
    form: Sequence[int],
    out: BinaryIO,
) -> None:
    """Form values and second opinions by pypdf; one broken page does not cost the others.

    Args:
        again: pages to read again, and the share of their characters taken to have no map.
        form: pages to look for form fields on.
    """
    try:
        reader = pdf_second.open_reader(data, request["password"])
    # A second opinion is missed by nobody, form values are.
    except Exception:
        if form:
            raise
        return
    if reader is None:
        return
    for index in form or again:
        try:
            page = reader.pages[index]
            fields = pdf_second.form_fields(page) if form else []
            text = page.extract_text() if index in again else None
            missing = index in again and pdf_second.lacks_content(page)
        # pypdf raises errors of many kinds on broken pages.
        except Exception:
            continue
        if text and is_garbled(text, again[index]):
            text = None
        if fields or missing or (text and text.strip()):
            emit(out, event="extra", index=index, text=text, fields=fields, missing=missing)


def _serve_pypdf(data: bytes, request: dict[str, Any], out: BinaryIO) -> None:
    """The whole file by pypdf, which repairs some that pdfium gives up on."""
    reader = pdf_second.open_reader(data, request["password"])
    if reader is None:
        emit(out, event="error", code="password", message="")
        return
    num_pages = len(reader.pages)
    found = [] if request["first_page"] else damage(data)
    emit(out, event="open", pages=num_pages, notes=found)
    labels = pdf_second.page_labels(reader, num_pages)
    for index in range(request["first_page"], min(request["end_page"], num_pages)):
        try:
            page = reader.pages[index]
            text, links = page.extract_text(), pdf_second.web_links(page)
        # As above: of many kinds.
        except Exception:
            text, links = None, []
        garbled = text is not None and is_garbled(text, 0.0)
        emit(
            out,
            event="page",
            index=index,
            text=text,
            label=labels[index],
            garbled=garbled,
            image_share=0.0,
            objects=0,
            links=links,
            notes=[],
        )
    emit(out, event="end", xfa=False)


if __name__ == "__main__":
    main()
