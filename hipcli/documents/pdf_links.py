"""Where the links of a PDF page lead: the words they lie on, and the address behind them.

Runs in the child process only. Links within the document (tables of contents, references) are left
out: their target is text that is read anyway.
"""

import ctypes
import re
from typing import Any

# Of one page; more are no help to a reader.
MAX_LINKS = 200
_MAX_ANNOTATIONS = 2000
_MAX_TARGET_CHARS = 500
_MAX_WORDS_CHARS = 120
_SCHEME = re.compile(r"(?:https?|ftp|mailto|tel|doi):", re.IGNORECASE)


def web_links(pdf: Any, page: Any, textpage: Any) -> list[list[str]]:
    """[words, target] of each link out of the document, in the page's order."""
    import pypdfium2.raw as raw

    links: list[list[str]] = []
    place, link = ctypes.c_int(0), raw.FPDF_LINK()
    for _ in range(_MAX_ANNOTATIONS):
        found = raw.FPDFLink_Enumerate(page, ctypes.byref(place), ctypes.byref(link))
        if not found or len(links) >= MAX_LINKS:
            break
        for target in readable_target(_target(raw, pdf, link)):
            words = _words(raw, textpage, link)
            # A link that goes on in the next line is two to the file.
            if links and links[-1][1] == target:
                links[-1][0] = f"{links[-1][0]} {words}"[:_MAX_WORDS_CHARS]
            else:
                links.append([words, target])
    return links


def readable_target(target: str) -> list[str]:
    """The address of a link in a list; an empty one where it is none that a person would follow."""
    target = "".join(target.split())
    known = _SCHEME.match(target) is not None and target.isprintable()
    return [target] if known and len(target) <= _MAX_TARGET_CHARS else []


def _target(raw: Any, pdf: Any, link: Any) -> str:
    action = raw.FPDFLink_GetAction(link)
    if not action or raw.FPDFAction_GetType(action) != raw.PDFACTION_URI:
        return ""
    size = raw.FPDFAction_GetURIPath(pdf, action, None, 0)
    # The terminating NUL is counted.
    if not 1 < size <= 4 * _MAX_TARGET_CHARS:
        return ""
    buffer = ctypes.create_string_buffer(size)
    raw.FPDFAction_GetURIPath(pdf, action, buffer, size)
    return buffer.value.decode("utf-8", "replace")


def _words(raw: Any, textpage: Any, link: Any) -> str:
    box = raw.FS_RECTF()
    if not raw.FPDFLink_GetAnnotRect(link, ctypes.byref(box)):
        return ""
    text = textpage.get_text_bounded(box.left, box.bottom, box.right, box.top)
    return " ".join(text.split())[:_MAX_WORDS_CHARS]
