"""Reads one office file, EPUB or large HTML page in a process of its own.

Run as `python -m hipcli.documents.office_worker`; see `child` for what goes in. Events:
    {"event": "ready"}
    {"event": "part", "label", "text"}            a slide, sheet or chapter, or all there is
    {"event": "warning", "code", "message"}
    {"event": "end"} or {"event": "error", "code", "message"}
"""

import io
import zipfile
from typing import Any, BinaryIO

from hipcli.documents import docx_parts, epub_parts, pptx_parts, xlsx_parts
from hipcli.documents.child import emit, serve
from hipcli.documents.html_text import html_to_text
from hipcli.documents.refusal import Refusal

# A container with more, or more in it, is no document that somebody wrote.
_MAX_MEMBERS = 50_000
_MAX_BYTES = 1 << 30
# XML shrinks to a tenth or a fiftieth of its size; a bomb to a thousandth.
_MAX_RATIO = 300
_SMALL_BYTES = 1 << 24
_PARTS = {
    "docx": docx_parts.parts,
    "pptx": pptx_parts.parts,
    "xlsx": xlsx_parts.parts,
    "epub": epub_parts.parts,
}


def main() -> None:
    """Serve one request and exit."""
    serve(_serve)


def _serve(data: bytes, request: dict[str, Any], out: BinaryIO) -> None:
    kind = request["engine"]
    if kind == "html":
        text, title = html_to_text(data.decode("utf-8"))
        emit(out, event="part", label=title, text=text)
    else:
        check_container(data)
        for label, text in _PARTS[kind](data):
            emit(out, event="part", label=label, text=text)
    emit(out, event="end")


def check_container(data: bytes) -> None:
    """Refuse a ZIP that would unpack beyond measure, or whose XML defines entities.

    Raises:
        Refusal: it does, or its members are encrypted.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as container:
        members = container.infolist()
        total = sum(member.file_size for member in members)
        if len(members) > _MAX_MEMBERS or total > _MAX_BYTES:
            raise Refusal("office_bomb", f"unpacks to {total:,} bytes in {len(members):,} files")
        for member in members:
            if member.flag_bits & 1:
                raise Refusal("office_encrypted", "encrypted; save it without a password")
            large = member.file_size > _SMALL_BYTES
            if large and member.file_size > _MAX_RATIO * max(1, member.compress_size):
                raise Refusal("office_bomb", f"{member.filename[:80]!r} unpacks beyond all measure")
            if member.filename.lower().endswith((".xml", ".rels", ".opf", ".ncx", ".xhtml")):
                with container.open(member) as file:
                    # Entities can only be defined at the start; NULs are UTF-16's.
                    head = file.read(4096).replace(b"\0", b"")
                if b"<!ENTITY" in head:
                    raise Refusal("office_bomb", "XML that defines entities of its own")


if __name__ == "__main__":
    main()
