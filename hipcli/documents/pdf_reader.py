"""PDFs: what the child process found, put together, mended, and described page by page."""

import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from hipcli.documents.child_process import WorkerDied, WorkerRequest, worker_events
from hipcli.documents.content import Content, Hints
from hipcli.documents.decode import drop_surrogates
from hipcli.documents.document import OutlineEntry, Page, PageStatus
from hipcli.documents.pdf_text import clean_page, mend_hyphens
from hipcli.documents.refusal import Refusal
from hipcli.documents.running_lines import drop_running_lines

# A page that is all image can carry a line of real text, such as "Downloaded from ...".
_HEADER_CHARS = 120
_OCR_HINT = "Run OCR on it first, for example: ocrmypdf IN.pdf OUT.pdf"


@dataclass(slots=True)
class _Found:
    """What is known of a page so far; the child's later events add to it."""

    text: str = ""
    label: str | None = None
    status: PageStatus = "failed"
    image_share: float = 0.0
    fields: list[list[str]] = field(default_factory=list)


@dataclass(slots=True)
class _Progress:
    """What all children of one PDF have sent so far."""

    pages: list[_Found] | None = None
    next_page: int = 0
    done: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    outline: list[OutlineEntry] = field(default_factory=list)


def read(data: bytes, hints: Hints) -> Content:
    """Read a PDF: text and status of every page.

    Raises:
        Refusal: it needs a password, is damaged beyond reading, or has no text on any page.
    """
    progress = _run(data, hints)
    assert progress.pages is not None, "_run refuses a file that was never opened"
    if not progress.pages:
        raise Refusal("pdf_damaged", "the PDF has no pages")
    _mark_scans(progress.pages)
    cleaned = [clean_page(drop_surrogates(page.text)) for page in progress.pages]
    texts = mend_hyphens(drop_running_lines(cleaned, [page.label for page in progress.pages]))
    for page, text in zip(progress.pages, texts, strict=True):
        page.text = "\n".join(part for part in (text, _form_text(page.fields)) if part)
        if page.fields and page.status in ("empty", "image-only"):
            page.status = "text"
    return _content(progress)


def _run(data: bytes, hints: Hints) -> _Progress:
    """Let children read until the last page; each that dies costs the page it was at."""
    limits = hints.pdf_limits
    progress = _Progress()
    deadline = time.monotonic() + limits.total_s
    engine: Literal["pdfium", "pypdf"] = "pdfium"
    for attempt in range(1 + limits.restarts):
        request = WorkerRequest(data, hints.password, engine, progress.next_page, limits, deadline)
        try:
            for event in worker_events(request):
                _take(event, progress, hints)
            break
        except WorkerDied as death:
            if progress.pages is None:
                if attempt or not limits.restarts:
                    raise Refusal("pdf_failed", f"the PDF cannot be read: {death}") from death
                # Perhaps the other parser survives it.
                engine = "pypdf"
                continue
            if progress.done:
                progress.notes.append(
                    ("pdf_form_unread", f"form values could not be read: {death}")
                )
                break
            number = progress.next_page + 1
            progress.notes.append(("pdf_failed_page", f"page {number} cannot be read: {death}"))
            progress.next_page = number
            progress.done = number >= len(progress.pages)
            if progress.done or time.monotonic() >= deadline:
                break
    return progress


def _take(event: dict[str, Any], progress: _Progress, hints: Hints) -> None:
    """Add one event of a child to what is known."""
    kind = event["event"]
    if kind == "open":
        if progress.pages is None:
            progress.pages = [_Found() for _ in range(event["pages"])]
    elif kind == "outline":
        progress.outline = [
            OutlineEntry(drop_surrogates(title), level, index + 1)
            for title, level, index in event["entries"]
        ]
    elif kind == "page":
        assert progress.pages is not None, "the child opens before it reads"
        progress.pages[event["index"]] = _found(event)
        progress.next_page = event["index"] + 1
        progress.done = progress.next_page >= len(progress.pages)
    elif kind == "extra":
        assert progress.pages is not None, "the child opens before it reads"
        page = progress.pages[event["index"]]
        page.fields = event["fields"]
        if event["text"]:
            page.text, page.status = event["text"], "text"
    elif kind == "end" and event["xfa"]:
        progress.notes.append(
            ("pdf_xfa_form", "a dynamic (XFA) form: what is filled in there is not read")
        )
    elif kind == "error":
        _take_error(event, progress, hints)


def _take_error(event: dict[str, Any], progress: _Progress, hints: Hints) -> None:
    if event["code"] == "password":
        if hints.password is None:
            raise Refusal(
                "pdf_password",
                "the PDF needs a password",
                "Put the password into a file and give --password-file FILE.",
            )
        raise Refusal("pdf_password", "the password does not open the PDF")
    if event["code"] == "security":
        reason = "the PDF is encrypted in a way that only its publisher's program opens"
        raise Refusal("pdf_password", reason)
    if event["code"] == "memory":
        raise WorkerDied("out of memory")
    if progress.pages is None:
        raise Refusal("pdf_damaged", f"damaged, or not a PDF ({event['message']})")
    if not progress.done:
        raise WorkerDied(event["message"])
    progress.notes.append(("pdf_form_unread", f"form values could not be read: {event['message']}"))


def _found(event: dict[str, Any]) -> _Found:
    """A page as the child saw it, with a status."""
    text: str | None = event["text"]
    status: PageStatus = "text"
    if text is None:
        status = "failed"
    elif event["garbled"]:
        # Kept out of the model: codes of a font would only take up its attention.
        text, status = "", "garbled"
    elif not text.strip():
        drawn = event["image_share"] > 0 or event["objects"] >= 20
        text, status = "", "image-only" if drawn else "empty"
    return _Found(text or "", event["label"], status, event["image_share"])


def _mark_scans(pages: list[_Found]) -> None:
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
    if not fields:
        return ""
    lines = (f"{name}: {value}" for name, value in fields)
    return "[form fields]\n" + clean_page(drop_surrogates("\n".join(lines)))


def _content(progress: _Progress) -> Content:
    """Join the pages' texts; refuse when no page has any."""
    found, notes = progress.pages or [], progress.notes
    pages, pieces, at = [], [], 0
    for number, page in enumerate(found, start=1):
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
        partial=lost or bool(notes),
        warnings=tuple(warnings),
        outline=tuple(entry for entry in progress.outline if entry.page <= len(pages)),
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
