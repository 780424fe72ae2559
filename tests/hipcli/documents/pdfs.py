"""PDFs with known content, made by reportlab and pypdf, or written by hand where those can't."""

import io
import zlib
from collections.abc import Callable, Sequence

from pypdf import PdfWriter
from pypdf.generic import DictionaryObject
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

PROSE = (
    "The lighthouse keeper wrote down the weather every evening,",
    "the height of the waves and the names of the ships that passed.",
    "On the ninth of May he noted a whale.",
)


def draw(*pages: Callable[[Canvas], None]) -> bytes:
    """A PDF with a page for each function that draws one."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    for page in pages:
        page(canvas)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def text(*lines: str) -> Callable[[Canvas], None]:
    """A page of lines of text."""

    def draw_text(canvas: Canvas) -> None:
        item = canvas.beginText(72, 720)
        for line in lines:
            item.textLine(line)
        canvas.drawText(item)

    return draw_text


def blank(canvas: Canvas) -> None:
    """A page with nothing on it."""


def scan(header: str = "", hidden: Sequence[str] = ()) -> Callable[[Canvas], None]:
    """A page that is all image, with a line of real text, or an invisible layer of it (OCR)."""

    def draw_scan(canvas: Canvas) -> None:
        from PIL import Image

        image = Image.new("L", (40, 50), 200)
        canvas.drawImage(ImageReader(image), 0, 0, width=595, height=842)
        if header:
            canvas.drawString(72, 800, header)
        if hidden:
            item = canvas.beginText(72, 700)
            item.setTextRenderMode(3)
            for line in hidden:
                item.textLine(line)
            canvas.drawText(item)

    return draw_scan


def rewrite(data: bytes, change: Callable[[PdfWriter], None]) -> bytes:
    """The PDF after pypdf changed something in it."""
    writer = PdfWriter(clone_from=io.BytesIO(data))
    change(writer)
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def encrypt(data: bytes, algorithm: str, user: str, owner: str) -> bytes:
    """The PDF encrypted by pypdf: "RC4-128", "AES-128", "AES-256"."""
    return rewrite(data, lambda writer: writer.encrypt(user, owner, algorithm=algorithm))


def without_unicode_map(data: bytes) -> bytes:
    """The PDF without the tables that say which letter each number in a font stands for."""

    def strip(writer: PdfWriter) -> None:
        for item in writer._objects:
            if isinstance(item, DictionaryObject) and "/ToUnicode" in item:
                del item["/ToUnicode"]

    return rewrite(data, strip)


def composite_font(lines: Sequence[str]) -> bytes:
    """A page in a two-byte font without a Unicode map; letters are numbered from "A" = 36 on.

    So are the glyphs of most TrueType fonts; many programs write PDFs like this.
    """
    codes = [b"".join(b"%04X" % (ord(char) - 29) for char in line) for line in lines]
    content = b"BT /F2 12 Tf 72 700 Td 14 TL %s ET" % b" ".join(b"<%s> Tj T*" % c for c in codes)
    descendant = (
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/ABCDEF+Book/CIDToGIDMap/Identity"
        b"/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>"
        b"/FontDescriptor<</Type/FontDescriptor/FontName/ABCDEF+Book/Flags 4/StemV 80"
        b"/FontBBox[0 0 999 999]/ItalicAngle 0/Ascent 900/Descent -200/CapHeight 700>>>>"
    )
    font = (
        b"<</Type/Font/Subtype/Type0/BaseFont/ABCDEF+Book/Encoding/Identity-H"
        b"/DescendantFonts[" + descendant + b"]>>"
    )
    return assemble(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
            b"/Resources<</Font<</F2 " + font + b">>>>>>",
            stream(content),
        ]
    )


def by_hand(content: bytes, resources: bytes = b"", extra: Sequence[bytes] = ()) -> bytes:
    """A PDF of one page with that content stream; `extra` are objects from number 5 on."""
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R"
        b"/Resources<</Font<</F1 " + font + b">>" + resources + b">>>>",
        stream(content),
        *extra,
    ]
    return assemble(objects)


def stream(content: bytes, entries: bytes = b"", times: int = 0) -> bytes:
    """A stream object; `times` > 0 packs the content that often, for bombs of zeros."""
    if times:
        packer = zlib.compressobj(9)
        packed = b"".join(packer.compress(content) for _ in range(times)) + packer.flush()
        content, entries = packed, entries + b"/Filter/FlateDecode"
    head = b"<<%s/Length %d>>" % (entries, len(content))
    return head + b"stream\n" + content + b"\nendstream"


def assemble(objects: Sequence[bytes]) -> bytes:
    """A PDF file of numbered objects; the first is the catalog."""
    out = b"%PDF-1.7\n"
    offsets = []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    xref = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
    trailer = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, len(out))
    return out + xref + trailer


def tower_forms(depth: int, width: int, first_number: int) -> tuple[bytes, ...]:
    """Forms that draw one another, width ** depth in all: reading them never ends.

    Args:
        first_number: the number that the first form will have as an object.
    """
    forms = []
    for level in range(depth):
        below = b"/X Do " * width if level + 1 < depth else b"BT /F1 9 Tf (x) Tj ET"
        inner = b"/Resources<</XObject<</X %d 0 R>>>>" % (first_number + level + 1)
        forms.append(stream(below, b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]" + inner))
    return tuple(forms)
