"""A PDF of every kind that goes wrong in practice, each with the right value.

The law they all stand under: what is lost is told. Either all of the text is there, or the input is
partial with a warning that says what is missing, or it is refused with a reason (exit code 3).
"""

import io
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import (
    ArrayObject,
    DictionaryObject,
    FloatObject,
    NameObject,
    TextStringObject,
)
from reportlab.pdfgen.canvas import Canvas

from hipcli.documents import PdfLimits, ReadOptions, read_sources
from hipcli.engine.errors import InputError
from hipcli.exit_codes import ExitCode, exit_code
from tests.hipcli.documents import pdfs
from tests.hipcli.documents.test_pdf_pages import many

LIMITS = PdfLimits(page_s=2.0, total_s=20.0)
PLAIN = pdfs.text("The ferry leaves at nine.", "The barge stays.")


@dataclass(frozen=True, slots=True)
class Case:
    """One PDF.

    Args:
        make: its bytes.
        pages: status of each page; empty where the file is refused.
        has: what must stand in the text, each once.
        lacks: what must not.
        told: codes of warnings, or the one reason of the refusal.
        password: given on the command line.
    """

    make: Callable[[], bytes]
    pages: str = ""
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    password: str | None = None


def chapters() -> bytes:
    def page(number: int) -> Callable[[Canvas], None]:
        names = ("one", "two", "three", "four", "five", "six")
        return pdfs.text(
            "The Harbour Book", f"Of chapter {names[number]} this is all.", f"{number + 1}"
        )

    return pdfs.draw(*map(page, range(6)))


def columns(count: int) -> bytes:
    def page(canvas: Canvas) -> None:
        canvas.setPageSize((200 * count, 842))
        for i in range(14):
            for c in range(count):
                canvas.drawString(
                    40 + 170 * c, 760 - 14 * i, f"col {'abcd'[c]} line {i:02d} of text"
                )

    return pdfs.draw(page)


def form(canvas: Canvas) -> None:
    canvas.drawString(72, 720, "Licence")
    canvas.acroForm.textfield(name="owner", value="Mara Quill", x=72, y=680)


def linked(canvas: Canvas) -> None:
    canvas.drawString(72, 700, "the tide table")
    canvas.linkURL("https://tides.example/4", (72, 698, 160, 712))


def noted() -> bytes:
    def add(writer: PdfWriter) -> None:
        box = ArrayObject(map(FloatObject, (72, 500, 300, 540)))
        for kind, words in (("/FreeText", "typed over it"), ("/Text", "a note: moved to berth 9")):
            writer.pages[0].setdefault(NameObject("/Annots"), ArrayObject()).append(
                DictionaryObject(
                    {
                        NameObject("/Type"): NameObject("/Annot"),
                        NameObject("/Subtype"): NameObject(kind),
                        NameObject("/Rect"): box,
                        NameObject("/Contents"): TextStringObject(words),
                    }
                )
            )

    return pdfs.rewrite(pdfs.draw(PLAIN), add)


def attached() -> bytes:
    return pdfs.rewrite(pdfs.draw(PLAIN), lambda writer: writer.add_attachment("a.xml", b"<a/>"))


def labelled() -> bytes:
    data = pdfs.draw(PLAIN, pdfs.text("Second."))
    return pdfs.rewrite(data, lambda writer: writer.set_page_label(0, 1, style="/r", start=3))


def xfa() -> bytes:
    catalog = b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[]/XFA(<xdp></xdp>)>>>>"
    return many({}, 1).replace(b"<</Type/Catalog/Pages 2 0 R>>", catalog)


def damaged_stream() -> bytes:
    packed = bytearray(
        zlib.compress(b"BT /F1 12 Tf 72 700 Td " + b"(some words) Tj T* " * 400 + b"ET")
    )
    packed[len(packed) // 2] ^= 0xFF
    body = b"<</Filter/FlateDecode/Length %d>>stream\n%s\nendstream" % (len(packed), bytes(packed))
    plain = pdfs.stream(b"BT /F1 12 Tf 72 700 Td (this is page 2) Tj ET")
    return many({}, 2).replace(plain, body)


def cut_off() -> bytes:
    # The trailer comes first in files made for the web, so they open without their end.
    whole = many({}, 6)
    trailer = b"trailer<</Size 15/Root 1 0 R>>\n"
    return whole[: whole.index(b"(this is page 4)")].replace(b"%PDF-1.7\n", b"%PDF-1.7\n" + trailer)


def garbled_and_text() -> bytes:
    writer = PdfWriter()
    for data in (pdfs.composite_font(pdfs.PROSE), pdfs.draw(PLAIN)):
        writer.append(io.BytesIO(data))
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def locked(algorithm: str, user: str) -> Callable[[], bytes]:
    return lambda: pdfs.encrypt(pdfs.draw(PLAIN), algorithm, user=user, owner="boss")


FERRY = ("The ferry leaves at nine.\nThe barge stays.",)
CASES = {
    "plain": Case(lambda: pdfs.draw(PLAIN), "text", FERRY),
    "blank": Case(lambda: pdfs.draw(pdfs.blank), told=("blank",)),
    "blank among others": Case(lambda: pdfs.draw(PLAIN, pdfs.blank), "text empty", FERRY),
    "scan": Case(lambda: pdfs.draw(pdfs.scan(), pdfs.scan()), told=("images",)),
    "scan with a header line": Case(
        lambda: pdfs.draw(*[pdfs.scan(header=f"Scanned, {i}") for i in range(3)]), told=("images",)
    ),
    "scan with hidden text": Case(
        lambda: pdfs.draw(pdfs.scan(hidden=pdfs.PROSE)), "text", (pdfs.PROSE[0],)
    ),
    "scan among others": Case(
        lambda: pdfs.draw(PLAIN, pdfs.scan()), "text image-only", FERRY, told=("pdf_image_pages",)
    ),
    "garbled": Case(lambda: pdfs.composite_font(pdfs.PROSE), told=("garbled",)),
    "garbled among others": Case(
        garbled_and_text, "garbled text", FERRY, told=("pdf_garbled_pages",)
    ),
    "running lines": Case(
        chapters, "text " * 6, ("chapter one", "chapter six"), ("The Harbour Book",)
    ),
    "two columns": Case(
        lambda: columns(2), "text", ("col a line 13 of text\ncol b line 00 of text",)
    ),
    "three columns": Case(
        lambda: columns(3),
        "text",
        ("col a line 13 of text\ncol b line 00", "col b line 13 of text\ncol c line 00"),
    ),
    "hyphens": Case(
        lambda: pdfs.draw(pdfs.text("This is infor-", "mation.")), "text", ("information.",)
    ),
    "form": Case(lambda: pdfs.draw(form), "text", ("[form fields]\nowner: Mara Quill",)),
    "dynamic form": Case(xfa, "text", ("this is page 1",), told=("pdf_xfa_form",)),
    "links": Case(lambda: pdfs.draw(linked), "text", ("the tide table: https://tides.example/4",)),
    "notes": Case(noted, "text", (*FERRY, "[notes]\ntyped over it\na note: moved to berth 9")),
    "attachment": Case(attached, "text", FERRY, told=("pdf_attachments",)),
    "labels": Case(labelled, "text text", FERRY),
    "owner password, RC4": Case(locked("RC4-128", ""), "text", FERRY),
    "owner password, AES-256": Case(locked("AES-256", ""), "text", FERRY),
    "user password": Case(locked("AES-256", "rose"), told=("password",)),
    "user password given": Case(locked("AES-256", "rose"), "text", FERRY, password="rose"),
    "wrong password": Case(locked("AES-128", "rose"), told=("does not open",), password="tulip"),
    "cut off": Case(
        cut_off,
        "text text text failed failed failed",
        ("this is page 1", "this is page 3"),
        told=("pdf_cut_off", "pdf_failed_pages"),
    ),
    "cut in half": Case(lambda: pdfs.draw(PLAIN)[:700], told=("damaged",)),
    "damaged stream": Case(
        damaged_stream,
        "text failed",
        ("this is page 1",),
        told=("pdf_damaged_streams", "pdf_failed_pages"),
    ),
    "wrong xref": Case(
        lambda: many({}, 3).replace(b"startxref\n", b"startxref\n9"), "text text text"
    ),
    "missing content": Case(
        lambda: many({}, 3).replace(b"/Contents 7 0 R", b"/Contents 77 0 R"),
        "text failed text",
        ("this is page 1", "this is page 3"),
        told=("pdf_failed_pages",),
    ),
    "count too large": Case(
        lambda: many({}, 2).replace(b"/Count 2", b"/Count 4"),
        "text text failed failed",
        told=("pdf_failed_pages",),
    ),
    "endless page": Case(
        lambda: many({1: b"/X Do"}, 3, pdfs.tower_forms(12, 10, 3)),
        "text failed text",
        ("this is page 3",),
        told=("pdf_failed_page", "pdf_failed_pages"),
    ),
    "web page": Case(
        lambda: b"<!doctype html><html><body>Log in</body></html>", told=("web page",)
    ),
    "nothing": Case(lambda: b"", told=("empty file",)),
    "zeros": Case(lambda: bytes(5000), told=("zeros",)),
    "other text": Case(lambda: b"These are only words.\n", told=("header %PDF- is missing",)),
    "pointer": Case(
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", told=("LFS pointer",)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_corpus(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    file = tmp_path / "file.pdf"
    file.write_bytes(case.make())
    began_s = time.monotonic()
    try:
        corpus = read_sources([str(file)], ReadOptions(password=case.password, pdf_limits=LIMITS))
    except InputError as error:
        assert not case.pages, error.message
        assert exit_code(error.code) == ExitCode.INPUT_UNUSABLE
        assert case.told[0] in error.message + error.hint
        return
    finally:
        # A hang is what this is about; the limit is the program's own, with room to spare.
        assert time.monotonic() - began_s < LIMITS.total_s + 60
    (document,) = corpus.documents
    assert [page.status for page in document.pages] == case.pages.split()
    for words in case.has:
        assert document.text.count(words) == 1
    assert not [words for words in case.lacks if words in document.text]
    assert tuple(warning.code for warning in corpus.warnings) == case.told
    lost = any(page.status not in ("text", "empty") for page in document.pages)
    assert document.status == (
        "partial" if lost or set(case.told) - {"pdf_attachments"} else "read"
    )


def test_labels_of_the_corpus() -> None:
    from hipcli.documents.sources import read_bytes

    document = read_bytes(labelled(), "a.pdf", ReadOptions())
    assert [page.label for page in document.pages] == ["iii", "iv"]
