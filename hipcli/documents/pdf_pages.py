"""The pages of a PDF as child processes find them: a range of pages a child, children side by side.

A child ends with its range, and what its parser hoarded ends with it: memory stays flat however
many pages there are. A child that dies costs the page it was at; another goes on behind it.
"""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hipcli.documents.child_process import WorkerDied, WorkerRequest, worker_events
from hipcli.documents.content import Hints
from hipcli.documents.decode import drop_surrogates
from hipcli.documents.document import OutlineEntry, PageStatus
from hipcli.documents.refusal import Refusal

# The first child reads so many, and finds out how many there are: most PDFs need no second one.
_FIRST_PAGES = 64
_RANGE_PAGES = 512
_MAX_CHILDREN = 8
# Each child holds the whole file; all of them together hold no more than this beyond one of it.
_COPIES_BYTES = 1 << 30
# No book has as many; a file that claims them is hostile.
_MAX_PAGES = 1_000_000


@dataclass(slots=True)
class FoundPage:
    """What is known of a page so far; a child's later events add to it.

    Args:
        fields: names and values of form fields.
        links: words and target of each link out of the document.
        notes: what readers wrote on it.
    """

    text: str = ""
    label: str | None = None
    status: PageStatus = "failed"
    image_share: float = 0.0
    fields: list[list[str]] = field(default_factory=list)
    links: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FoundPdf:
    """All that the children of one PDF sent; `notes` are (code, message) pairs for the user."""

    pages: list[FoundPage]
    notes: list[tuple[str, str]]
    outline: list[OutlineEntry]


def find_pages(data: bytes, hints: Hints) -> FoundPdf:
    """Let children read all pages.

    Raises:
        Refusal: the file needs a password, or cannot be opened.
    """
    deadline = time.monotonic() + hints.pdf_limits.total_s
    first = _Range(data, hints, deadline, 0, _FIRST_PAGES)
    first.read()
    assert first.num_pages is not None, "read refuses a file that was never opened"
    rest = first.num_pages - _FIRST_PAGES
    copies = _COPIES_BYTES // max(1, len(data))
    children = max(1, min(num_cores(), _MAX_CHILDREN, copies))
    size = max(1, min(_RANGE_PAGES, -(-rest // children)))
    others = [
        _Range(data, hints, deadline, start, start + size, first.engine)
        for start in range(_FIRST_PAGES, first.num_pages, size)
    ]
    if others:
        _read_side_by_side(others, children)
    pages = list(first.pages)
    for each in others:
        missing = min(each.end, first.num_pages) - each.start - len(each.pages)
        pages += each.pages + [FoundPage() for _ in range(missing)]
    notes = [note for each in (first, *others) for note in each.notes]
    return FoundPdf(pages, list(dict.fromkeys(notes)), first.outline)


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_side_by_side(ranges: Sequence["_Range"], children: int) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(children) as pool:
        try:
            for future in [pool.submit(each.read_on, stop) for each in ranges]:
                future.result()
        except BaseException:
            # Ctrl-C, above all: no child goes on by itself.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Range:
    """Pages [start, end) of a PDF and the children that read them, one after the other.

    Attributes:
        pages: those of the range, once the file is open.
        num_pages: of the whole file; None until a child has opened it.
        next_page: where the next child would go on.
        engine: the parser that opens the file.
    """

    def __init__(
        self,
        data: bytes,
        hints: Hints,
        deadline: float,
        start: int,
        end: int,
        engine: str = "pdfium",
    ) -> None:
        self.start, self.end = start, end
        self.engine = engine
        self.pages: list[FoundPage] = []
        self.num_pages: int | None = None
        self.next_page = start
        self.notes: list[tuple[str, str]] = []
        self.outline: list[OutlineEntry] = []
        self._data, self._hints, self._deadline = data, hints, deadline

    @property
    def is_done(self) -> bool:
        return self.num_pages is not None and self.next_page >= self.end

    def read(self, stop: threading.Event | None = None) -> None:
        """Let children read until the last page; each that dies costs the page it was at.

        Args:
            stop: once set, reading ends within half a second, unfinished.

        Raises:
            Refusal: no child opens the file.
        """
        limits = self._hints.pdf_limits
        for attempt in range(1 + limits.restarts):
            request = WorkerRequest(
                self._data,
                self._hints.password,
                self.engine,
                self.next_page,
                limits,
                self._deadline,
                end_page=self.end,
            )
            try:
                for event in worker_events(request, stop):
                    self._take(event)
                return
            except WorkerDied as death:
                if stop is not None and stop.is_set():
                    return
                if self.num_pages is None:
                    if attempt or not limits.restarts:
                        raise Refusal("pdf_failed", f"the PDF cannot be read: {death}") from death
                    # Perhaps the other parser survives it.
                    self.engine = "pypdf"
                    continue
                if self.is_done:
                    self._note_unread_forms(str(death))
                    return
                self.notes.append(
                    ("pdf_failed_page", f"page {self.next_page + 1} cannot be read: {death}")
                )
                self.next_page += 1
                if self.is_done or time.monotonic() >= self._deadline:
                    return

    def read_on(self, stop: threading.Event) -> None:
        """`read` of a file that an earlier child opened: it is not refused any more."""
        try:
            self.read(stop)
        except Refusal as refusal:
            pages = f"pages {self.start + 1:,} to {self.end:,}"
            self.notes.append(("pdf_failed_page", f"{pages} cannot be read: {refusal.reason}"))

    def _take(self, event: dict[str, Any]) -> None:
        """Add one event of a child to what is known."""
        kind = event["event"]
        if kind == "open":
            self._open(event["pages"], event["notes"])
        elif kind == "outline":
            self.outline = [
                OutlineEntry(drop_surrogates(title), level, index + 1)
                for title, level, index in event["entries"]
            ]
        elif kind == "page":
            self.pages[event["index"] - self.start] = _found(event)
            self.next_page = event["index"] + 1
        elif kind == "extra":
            page = self.pages[event["index"] - self.start]
            page.fields = event["fields"]
            if event["text"]:
                page.text, page.status = event["text"], "text"
            elif event["missing"]:
                page.status = "failed"
        elif kind == "end" and event["xfa"]:
            self.notes.append(
                ("pdf_xfa_form", "a dynamic (XFA) form: what is filled in there is not read")
            )
        elif kind == "error":
            self._take_error(event)

    def _open(self, num_pages: int, notes: list[list[str]]) -> None:
        if num_pages > _MAX_PAGES:
            raise Refusal("pdf_damaged", f"a PDF that claims to have {num_pages:,} pages")
        if self.num_pages is None:
            self.num_pages = num_pages
            self.notes += [(code, message) for code, message in notes]
            self.end = min(self.end, num_pages)
            self.pages = [FoundPage() for _ in range(self.end - self.start)]

    def _take_error(self, event: dict[str, Any]) -> None:
        if event["code"] == "password":
            if self._hints.password is None:
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
        if self.num_pages is None:
            raise Refusal("pdf_damaged", f"damaged, or not a PDF ({event['message']})")
        if not self.is_done:
            raise WorkerDied(event["message"])
        self._note_unread_forms(event["message"])

    def _note_unread_forms(self, why: str) -> None:
        self.notes.append(("pdf_form_unread", f"form values could not be read: {why}"))


def _found(event: dict[str, Any]) -> FoundPage:
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
    return FoundPage(
        text or "",
        event["label"],
        status,
        event["image_share"],
        links=event["links"],
        notes=event["notes"],
    )
