"""PDFs: what the reader finds, against what the test put into them."""

import io
import sys

import pytest
from pypdf import PdfWriter
from pypdf.constants import UserAccessPermissions
from pypdf.generic import RectangleObject
from reportlab.lib import colors
from reportlab.pdfgen.canvas import Canvas

from hipcli.documents import pdf_reader
from hipcli.documents.content import Content, Hints
from hipcli.documents.options import PdfLimits
from hipcli.documents.refusal import Refusal
from tests.hipcli.documents import pdfs


def read(data: bytes, **hints: str | PdfLimits) -> Content:
    return pdf_reader.read(data, Hints(**hints))  # type: ignore[arg-type]


def refusal(data: bytes, **hints: str | PdfLimits) -> Refusal:
    with pytest.raises(Refusal) as caught:
        read(data, **hints)
    return caught.value


def page_texts(content: Content) -> list[str]:
    return [content.text[page.start_char : page.end_char] for page in content.pages]


def statuses(content: Content) -> list[str]:
    return [page.status for page in content.pages]


def test_pages_have_their_text_and_place() -> None:
    content = read(pdfs.draw(pdfs.text("one", "two"), pdfs.blank, pdfs.text("three")))
    assert page_texts(content) == ["one\ntwo", "", "three"]
    assert statuses(content) == ["text", "empty", "text"]
    assert [page.number for page in content.pages] == [1, 2, 3]
    assert not content.partial
    assert content.warnings == ()


def test_labels_are_kept_where_they_differ_from_the_number() -> None:
    def label(writer: PdfWriter) -> None:
        writer.set_page_label(0, 1, style="/r")
        writer.set_page_label(2, 3, style="/D", start=3)
        writer.set_page_label(4, 4, style="/D", prefix="A-")

    data = pdfs.rewrite(pdfs.draw(*[pdfs.text(f"page {i}") for i in range(5)]), label)
    # Pages 3 and 4 are printed as 3 and 4.
    assert [page.label for page in read(data).pages] == ["i", "ii", None, None, "A-1"]


def test_all_images_is_a_refusal_with_a_hint() -> None:
    refused = refusal(pdfs.draw(*[pdfs.scan()] * 3))
    assert refused.code == "pdf_no_text"
    assert "3 pages are images" in refused.reason
    assert "OCR" in refused.hint


def test_images_among_pages_are_named() -> None:
    plan = [pdfs.scan() if i in (2, 3, 4, 8) else pdfs.text(f"page {i}") for i in range(10)]
    content = read(pdfs.draw(*plan))
    assert content.partial
    assert [code for code, _ in content.warnings] == ["pdf_image_pages"]
    assert "4 pages (3-5, 9) of 10" in content.warnings[0][1]
    assert [s == "image-only" for s in statuses(content)] == [i in (2, 3, 4, 8) for i in range(10)]


def test_hidden_text_under_a_scan_is_found() -> None:
    content = read(pdfs.draw(pdfs.scan(hidden=pdfs.PROSE)))
    assert content.text == "\n".join(pdfs.PROSE)
    assert not content.partial


def test_a_header_on_every_scan_is_no_text() -> None:
    plan = [pdfs.scan(header=f"Downloaded on 3 May, page {i} of 4") for i in range(4)]
    assert refusal(pdfs.draw(*plan)).code == "pdf_no_text"
    assert statuses(read(pdfs.draw(pdfs.scan(header="The one slide of this talk")))) == ["text"]


def test_drawn_letters_are_an_image() -> None:
    strokes = b"".join(b"%d 100 m %d 200 l S " % (x, x + 5) for x in range(0, 600, 10))
    assert "images" not in refusal(pdfs.draw(pdfs.blank)).reason
    assert "is images" in refusal(pdfs.by_hand(strokes)).reason


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_encryption(algorithm: str) -> None:
    plain = pdfs.draw(pdfs.text("the secret of the lake"))
    only_owner = pdfs.encrypt(plain, algorithm, user="", owner="boss")
    assert read(only_owner).text == "the secret of the lake"
    # A password that is for another file does no harm.
    assert read(only_owner, password="other").text == "the secret of the lake"
    with_user = pdfs.encrypt(plain, algorithm, user="rose tree", owner="boss")
    refused = refusal(with_user)
    assert (refused.code, refused.status) == ("pdf_password", "failed")
    assert "--password-file" in refused.hint
    assert "does not open" in refusal(with_user, password="wrong").reason
    assert read(with_user, password="rose tree").text == "the secret of the lake"


def test_password_is_never_shown() -> None:
    assert "tulip" not in repr(Hints(password="tulip"))
    data = pdfs.encrypt(pdfs.draw(pdfs.text("x")), "AES-256", user="rose", owner="boss")
    refused = refusal(data, password="tulip")
    assert "tulip" not in refused.reason + refused.hint


def test_a_page_that_is_all_form() -> None:
    def only_form(canvas: Canvas) -> None:
        canvas.acroForm.textfield(name="owner", value="Mara\x07Quill", x=72, y=680)

    assert read(pdfs.draw(only_form)).text == "[form fields]\nowner: Mara\ufffdQuill"


def form(canvas: Canvas) -> None:
    canvas.drawString(72, 720, "Application for a boat licence")
    shared = {"borderColor": colors.black, "fillColor": colors.white}
    canvas.acroForm.textfield(name="owner", value="Mara Quill", x=72, y=680, **shared)
    canvas.acroForm.textfield(name="notes", value="", x=72, y=640, **shared)
    canvas.acroForm.textfield(name="pin", value="1234", fieldFlags="password", x=72, y=600)
    canvas.acroForm.checkbox(name="sails", checked=True, x=72, y=560, **shared)
    canvas.acroForm.checkbox(name="motor", checked=False, x=72, y=520, **shared)


@pytest.mark.parametrize("algorithm", [None, "AES-256"])
def test_form_values_are_read_under_a_marker(algorithm: str | None) -> None:
    data = pdfs.draw(form, pdfs.text("Page two"))
    if algorithm:
        data = pdfs.encrypt(data, algorithm, user="", owner="boss")
    content = read(data)
    first, second = page_texts(content)
    assert first == ("Application for a boat licence\n[form fields]\nowner: Mara Quill\nsails: Yes")
    assert second == "Page two"


def test_line_end_hyphens_are_mended() -> None:
    content = read(
        pdfs.draw(
            pdfs.text(
                "This is infor-",
                "mation, about a well-",
                "known and state-of-the-",
                "art thing by an Anglo-",
                "Saxon. The end.",
            ),
            pdfs.text("It is well-known indeed."),
        )
    )
    assert page_texts(content)[0] == (
        "This is information,\nabout a well-known\nand state-of-the-art\nthing by an Anglo-Saxon.\n"
        "The end."
    )


def test_ligatures_and_characters_beyond_the_first_plane() -> None:
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def\n"
        b"1 begincodespacerange <00> <FF> endcodespacerange\n"
        b"3 beginbfchar <41> <FB03> <42> <D83DDE00> <43> <00660069> endbfchar endcmap end end"
    )
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 5 0 R>>"
    data = pdfs.assemble(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
            b"/Resources<</Font<</F1 " + font + b">>>>>>",
            pdfs.stream(b"BT /F1 12 Tf 72 700 Td (oAce Bnd Cnd) Tj ET"),
            pdfs.stream(cmap),
        ]
    )
    assert read(data).text == "office \U0001f600nd find"


def test_fonts_without_a_map_are_garbled_not_text() -> None:
    refused = refusal(pdfs.composite_font(pdfs.PROSE))
    assert refused.code == "pdf_no_text"
    assert "garbled" in refused.reason
    writer = PdfWriter()
    writer.append(io.BytesIO(pdfs.composite_font(pdfs.PROSE)))
    writer.append(io.BytesIO(pdfs.draw(pdfs.text(*pdfs.PROSE))))
    buffer = io.BytesIO()
    writer.write(buffer)
    content = read(buffer.getvalue())
    assert statuses(content) == ["garbled", "text"]
    assert page_texts(content) == ["", "\n".join(pdfs.PROSE)]
    assert content.warnings[0][0] == "pdf_garbled_pages"


def test_rotated_page_loses_nothing_and_cropped_page_is_cropped() -> None:
    lines = [f"line {i} of sixty" for i in range(60)]

    def sideways(canvas: Canvas) -> None:
        # Upright once the page is turned by 90 degrees.
        canvas.translate(0, 842)
        canvas.rotate(-90)
        item = canvas.beginText(40, 580)
        item.setFont("Helvetica", 9)
        for line in lines:
            item.textLine(line)
        canvas.drawText(item)

    rotated = pdfs.rewrite(pdfs.draw(sideways), lambda writer: writer.pages[0].rotate(270))
    assert read(rotated).text == "\n".join(lines)

    def spread(canvas: Canvas) -> None:
        canvas.drawString(40, 700, "left page")
        canvas.drawString(400, 700, "right page")

    def crop(writer: PdfWriter) -> None:
        writer.pages[0].cropbox = RectangleObject((0, 0, 300, 842))
        writer.pages[1].cropbox = RectangleObject((300, 0, 595, 842))

    def crop_to_nothing(writer: PdfWriter) -> None:
        writer.pages[0].cropbox = RectangleObject((0, 0, 1, 1))

    assert "right page" in read(pdfs.rewrite(pdfs.draw(spread), crop_to_nothing)).text
    assert page_texts(read(pdfs.rewrite(pdfs.draw(spread, spread), crop))) == [
        "left page",
        "right page",
    ]


@pytest.mark.parametrize(
    "data", [b"%PDF-1.7", b"%PDF-1.7\n" + bytes(range(256)) * 20, pdfs.draw(pdfs.blank)[:300]]
)
def test_damaged_files_are_refused(data: bytes) -> None:
    assert refusal(data).status == "failed"


def test_a_file_that_only_the_second_parser_opens() -> None:
    data = pdfs.draw(pdfs.text("still legible"))
    # pdfium insists on a catalog it can find; pypdf looks for the pages.
    broken = data.replace(b"/Type /Catalog", b"/Type /Cartalog")
    assert broken != data
    assert read(broken).text.strip() == "still legible"


def test_permissions_do_not_keep_text_back() -> None:
    def lock(writer: PdfWriter) -> None:
        writer.encrypt("", "boss", permissions_flag=UserAccessPermissions(0), algorithm="AES-128")

    assert read(pdfs.rewrite(pdfs.draw(pdfs.text("open")), lock)).text == "open"


def test_worker_needs_no_numpy() -> None:
    """A child starts for every PDF; what it imports is paid each time."""
    import subprocess

    code = (
        "import sys, hipcli.documents.pdf_worker as w; slow = 'numpy pathspec pypdf'.split();"
        "print([m for m in slow if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
