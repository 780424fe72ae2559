"""HTML files: decoded as browsers do, then as text. Large ones are read in a child process."""

import re

from hipcli.documents import office_reader, text_reader
from hipcli.documents.content import Content, Hints
from hipcli.documents.decode import decode, drop_surrogates
from hipcli.documents.html_text import html_to_text
from hipcli.documents.options import encoding_name

# Starting a child takes longer than reading this much, however hostile it is.
_SMALL_BYTES = 1 << 18
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?([\w.:-]{1,40})", re.IGNORECASE
)


def read(data: bytes, hints: Hints) -> Content:
    """Read a page; lines are those of its text, as `hip inspect --text` shows it.

    Raises:
        Refusal: binary data, no text in it, or too slow to read.
    """
    decoded = decode(data, hints.encoding or _declared(data))
    if len(data) <= _SMALL_BYTES:
        text, _ = html_to_text(drop_surrogates(decoded.text))
    else:
        encoded = drop_surrogates(decoded.text).encode("utf-8")
        text = office_reader.read_parts("html", encoded, hints).text
    if not text.strip():
        raise text_reader.blank()
    return Content(
        text=text,
        encoding=decoded.encoding,
        partial=decoded.undecodable > 0,
        warnings=text_reader.decoding_warnings(decoded, text),
    )


def _declared(data: bytes) -> str | None:
    """The encoding that the page says it has, where Python knows it."""
    match = _CHARSET.search(data[:2048])
    return encoding_name(match[1].decode("ascii")) if match else None
