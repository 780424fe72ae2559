"""PDFs: what the child process found, put together, mended, and described page by page."""

import re
from collections import Counter
from collections.abc import Iterable

from hipcli.documents.content import Content, Hints
from hipcli.documents.decode import drop_surrogates
from hipcli.documents.document import Page
from hipcli.documents.pdf_pages import FoundPage, FoundPdf, find_pages
from hipcli.documents.pdf_text import HYPHEN_MARK, clean_page, mend_hyphens
from hipcli.documents.refusal import Refusal
from hipcli.documents.running_lines import drop_running_lines

# A page that is all image can carry a line of real text, such as "Downloaded from ...".
_HEADER_CHARS = 120
# A link on fewer pages, or on a smaller part of them, is no part of the page's frame.
_MIN_RUNNING_PAGES = 4
_RUNNING_SHARE = 0.4
# Notes about a file of which all pages are read.
_HARMLESS = ("pdf_attachments",)
_DAMAGED = {"pdf_cut_off", "pdf_damaged_streams"}
_OCR_HINT = "Run OCR on it first, for example: ocrmypdf IN.pdf OUT.pdf"


def read(data: bytes, hints: Hints) -> Content:
    """Read a PDF: text and status of every page.

    Raises:
        Refusal: it needs a password, is damaged beyond reading, or has no text on any page.
    """
    found = find_pages(data, hints)
    pages = found.pages
    if not pages:
        raise Refusal("pdf_damaged", "the PDF has no pages")
    _mark_scans(pages)
    cleaned = [clean_page(drop_surrogates(page.text)) for page in pages]
    texts = mend_hyphens(drop_running_lines(cleaned, [page.label for page in pages]))
    running = _running_targets(pages)
    for page, text in zip(pages, texts, strict=True):
        links = _link_text(page.links, text, running) if text else ""
        added = [_form_text(page.fields), _marked("notes", page.notes), links]
        page.text = "\n".join(part for part in (text, *added) if part)
        if page.text and (page.status == "empty" or page.fields and page.status == "image-only"):
            page.status = "text"
    if not _DAMAGED.isdisjoint(code for code, _ in found.notes):
        # An empty page of a broken file is where its damage shows.
        for page in pages:
            page.status = "failed" if page.status == "empty" else page.status
    return _content(found)


def _mark_scans(pages: list[FoundPage]) -> None:
    """Call pages image-only whose only text is a line that the scanner put on each of them."""
    covered = [p for p in pages if p.status == "text" and p.image_share > 0.5]
    short = [page for page in covered if len(page.text.strip()) <= _HEADER_CHARS]
    headers = Counter(_without_digits(page.text) for page in short)
    for page in short:
        if headers[_without_digits(page.text)] > 1:
            page.status = "image-only"


def _without_digits(text: str) -> str:
    return re.sub(r"[\d\s]+", "", text)


def _form_text(fields: list[list[str]]) -> str:
    return _marked("form fields", [f"{name}: {value}" for name, value in fields])


def _marked(title: str, lines: list[str]) -> str:
    """Lines that are not the page's own text, under a title of their own."""
    if not lines:
        return ""
    text = clean_page(drop_surrogates("\n".join(lines))).replace(HYPHEN_MARK, "-")
    return f"[{title}]\n{text}"


def _running_targets(pages: list[FoundPage]) -> set[str]:
    """Targets of links that belong to the frame of the pages, as running headers do."""
    counts = Counter(target for page in pages for target in {link[1] for link in page.links})
    needed = max(_MIN_RUNNING_PAGES, _RUNNING_SHARE * len(pages))
    return {target for target, count in counts.items() if count >= needed}


def _link_text(links: list[list[str]], text: str, running: set[str]) -> str:
    """Where a page's links lead, a line each; without those that its text spells out itself."""
    lines = []
    for words, target in links:
        shown = re.sub(r"^(?:https?://|mailto:)(?:www\.)?", "", target).rstrip("/")
        if target in running or shown in text:
            continue
        words = " ".join(words.split())
        lines.append(f"{words}: {target}" if words else target)
    return _marked("links", list(dict.fromkeys(lines)))


def _content(pdf: FoundPdf) -> Content:
    """Join the pages' texts; refuse when no page has any."""
    notes = pdf.notes
    pages, pieces, at = [], [], 0
    for number, page in enumerate(pdf.pages, start=1):
        label = page.label if page.label != str(number) else None
        pages.append(Page(number, label, at, at + len(page.text), page.status))
        pieces.append(page.text)
        at += len(page.text) + 1
    if not any(page.status == "text" for page in pages):
        raise _no_text(pages, notes)
    warnings = [*notes, *_page_warnings(pages)]
    lost = any(page.status not in ("text", "empty") for page in pages)
    return Content(
        text="\n".join(pieces),
        pages=tuple(pages),
        partial=lost or any(code not in _HARMLESS for code, _ in notes),
        warnings=tuple(warnings),
        outline=tuple(entry for entry in pdf.outline if entry.page <= len(pages)),
    )


def _page_warnings(pages: list[Page]) -> list[tuple[str, str]]:
    """One line for each kind of page that gave no text, naming the pages."""
    total = len(pages)
    warnings = []
    for status, code, what in (
        ("image-only", "pdf_image_pages", "images without text (OCR would be needed)"),
        ("garbled", "pdf_garbled_pages", "garbled: their fonts do not say what letters they show"),
        ("failed", "pdf_failed_pages", "unreadable"),
    ):
        numbers = [page.number for page in pages if page.status == status]
        if numbers:
            one = len(numbers) == 1
            where = f"page {numbers[0]}" if one else f"{len(numbers):,} pages ({ranges(numbers)})"
            verb = "is" if one else "are"
            warnings.append((code, f"{where} of {total:,} {verb} {what}"))
    return warnings


def ranges(numbers: Iterable[int]) -> str:
    """Ascending page numbers in short: "3-5, 9"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _no_text(pages: list[Page], notes: list[tuple[str, str]]) -> Refusal:
    """Why a PDF gives no text at all."""
    total = "its only page is" if len(pages) == 1 else f"all {len(pages):,} pages are"
    kinds = {page.status for page in pages} - {"empty"}
    if not kinds:
        return Refusal("pdf_no_text", f"no text: {total} blank")
    if kinds == {"image-only"}:
        return Refusal("pdf_no_text", f"no text: {total} images (a scan?)", _OCR_HINT)
    if kinds == {"garbled"}:
        reason = f"no text: {total} garbled (fonts that do not say what letters they show)"
        return Refusal("pdf_no_text", reason, _OCR_HINT)
    what = [message for _, message in (*_page_warnings(pages), *notes)]
    return Refusal("pdf_failed", "no page can be read: " + "; ".join(what))
