"""EPUBs: a part for each file of the reading order, its label the heading it begins with.

Python reads ZIP, XML and HTML itself, so that books need no extra.
"""

import io
import posixpath
import re
import zipfile
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree import ElementTree

from hipcli.documents.html_text import html_to_text
from hipcli.documents.refusal import Refusal

_HEADING = re.compile(r"#{1,6} (.+)")
# Fonts may be scrambled in a book that everybody can read.
_FONT_SCRAMBLING = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_CHARSET = re.compile(rb"encoding\s{0,9}=\s{0,9}[\"']([\w.-]{1,40})")


def parts(data: bytes) -> Iterator[tuple[str, str]]:
    """Heading and text of each chapter, in reading order.

    Raises:
        Refusal: the book is locked.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        _refuse_locked(book)
        found = next(_elements(book.read("META-INF/container.xml"), "rootfile"))
        package = found.get("full-path", "")
        root, unread = book.read(package), set(book.namelist())
        files = {item.get("id"): item.get("href", "") for item in _elements(root, "item")}
        for reference in _elements(root, "itemref"):
            href = files.get(reference.get("idref"), "")
            name = posixpath.normpath(
                posixpath.join(posixpath.dirname(package), unquote(href.partition("#")[0]))
            )
            # A chapter that is not there is like an empty one: the others keep their numbers. So is
            # one that was there before; a small book could be endless otherwise.
            yield _chapter(book.read(name)) if name in unread else ("", "")
            unread.discard(name)


def _refuse_locked(book: zipfile.ZipFile) -> None:
    if "META-INF/encryption.xml" not in book.namelist():
        return
    for method in _elements(book.read("META-INF/encryption.xml"), "EncryptionMethod"):
        if method.get("Algorithm") not in _FONT_SCRAMBLING:
            raise Refusal("office_encrypted", "the book is locked (DRM) to its seller's programs")


def _elements(xml: bytes, name: str) -> Iterator[ElementTree.Element]:
    """Elements of that name, whatever namespace they are in."""
    for element in ElementTree.fromstring(xml).iter():
        if element.tag.rpartition("}")[2] == name:
            yield element


def _chapter(data: bytes) -> tuple[str, str]:
    declared = _CHARSET.search(data[:200])
    encoding = declared[1].decode("ascii") if declared else "utf-8"
    try:
        html = data.decode(encoding, "replace")
    except LookupError:
        html = data.decode("utf-8", "replace")
    text, title = html_to_text(html)
    heading = _HEADING.search(text)
    return (heading[1] if heading else title)[:120], text
