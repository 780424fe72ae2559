"""DOCX, PPTX, XLSX and EPUB: asked of a child process, put together as pages or as one text."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from hipcli.documents.child_process import WorkerDied, WorkerRequest, worker_events
from hipcli.documents.content import Content, Hints, join_parts
from hipcli.documents.decode import drop_surrogates, normalize_newlines
from hipcli.documents.refusal import Refusal
from hipcli.documents.text_reader import blank

# What each kind is called, and the package of the extra that reads it; None where Python does.
_FORMATS = {
    "docx": ("a Word file (DOCX)", "docx"),
    "pptx": ("a PowerPoint file (PPTX)", "pptx"),
    "xlsx": ("an Excel file (XLSX)", "openpyxl"),
    "epub": ("an EPUB", None),
    "html": ("an HTML page", None),
}
# Kinds whose parts are numbered and can be cited: slides, sheets, chapters.
_PAGED = ("pptx", "xlsx", "epub")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a child sent: (label, text) of each part, and what the user should know."""

    parts: tuple[tuple[str, str], ...]
    warnings: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return "\n".join(text for _, text in self.parts)


def reader(kind: str) -> Callable[[bytes, Hints], Content]:
    """The reader of one kind."""
    return lambda data, hints: read(kind, data, hints)


def read(kind: str, data: bytes, hints: Hints) -> Content:
    """Read an office file.

    Raises:
        Refusal: the extra is missing, the file is damaged, encrypted or hostile, or has no text.
    """
    title, package = _FORMATS[kind]
    if package is not None and find_spec(package) is None:
        raise Refusal(
            "extra_missing",
            f"{title}, which needs the optional readers",
            "Install them: pip install 'hipcli[office]'.",
            status="skipped",
        )
    if not data.startswith(b"PK"):
        raise Refusal("office_damaged", f"not {title}: it is no ZIP container inside")
    found = read_parts(kind, data, hints)
    if not any(text.strip() for _, text in found.parts):
        raise blank()
    if kind in _PAGED:
        text, pages = join_parts(found.parts)
    else:
        text, pages = found.text, ()
    return Content(text, pages, None, bool(found.warnings), found.warnings)


def read_parts(kind: str, data: bytes, hints: Hints) -> Parts:
    """What a child process makes of a file, under the limits of PDFs.

    Raises:
        Refusal: it could not be read.
    """
    title, limits = _FORMATS[kind][0], hints.pdf_limits
    deadline = time.monotonic() + limits.total_s
    request = WorkerRequest(data, None, kind, 0, limits, deadline, "office_worker")
    parts, warnings = [], []
    try:
        for event in worker_events(request):
            if event["event"] == "part":
                text = normalize_newlines(drop_surrogates(event["text"])).replace("\0", "\ufffd")
                parts.append((drop_surrogates(event["label"]), text))
            elif event["event"] == "warning":
                warnings.append((event["code"], event["message"]))
            elif event["event"] == "error":
                raise _refusal(event["code"], event["message"], title)
    except WorkerDied as death:
        raise Refusal("office_failed", f"{title} that cannot be read: {death}") from death
    return Parts(tuple(parts), tuple(warnings))


def _refusal(code: str, message: str, title: str) -> Refusal:
    if code == "damaged":
        return Refusal("office_damaged", f"damaged, or not {title} ({message})")
    if code == "memory":
        return Refusal("office_failed", f"{title} that cannot be read: out of memory")
    return Refusal(code, message)
