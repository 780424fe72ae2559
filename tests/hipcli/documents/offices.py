"""Office files and EPUBs with known content, made by the libraries that others write them with."""

import io
import zipfile
from collections.abc import Mapping
from datetime import date

CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>'
    "</rootfiles></container>"
)
PACKAGE = (
    '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf"><manifest>'
    '<item id="b" href="two.xhtml"/><item id="a" href="one%20.xhtml"/>'
    '<item id="c" href="no.xhtml"/></manifest>'
    '<spine><itemref idref="a"/><itemref idref="b"/><itemref idref="c"/></spine></package>'
)
CHAPTERS = {
    "OEBPS/one .xhtml": "<?xml version='1.0'?><html><head><title>t</title></head><body>"
    "<h1>The Storm</h1><p>Wind &amp; rain.</p></body></html>",
    "OEBPS/two.xhtml": "<html><body><h2>The Calm</h2><p>A key lay at low tide.</p></body></html>",
}


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as container:
        for name, content in members.items():
            container.writestr(name, content)
    return buffer.getvalue()


def epub(extra: Mapping[str, str | bytes] | None = None) -> bytes:
    """Two chapters, and a third that the package names and does not hold."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr("META-INF/container.xml", CONTAINER)
        for name, content in {"OEBPS/book.opf": PACKAGE, **CHAPTERS, **(extra or {})}.items():
            book.writestr(name, content)
    return buffer.getvalue()


def docx() -> bytes:
    """Headings, a list, a table, and text where python-docx does not look: an insertion."""
    import docx as library
    from docx.oxml import parse_xml

    document = library.Document()
    document.add_heading("Ferry rules", 1)
    document.add_paragraph("Dogs travel free.")
    document.add_paragraph("Bring a lead.", style="List Bullet")
    table = document.add_table(2, 2)
    for cell, text in zip((c for row in table.rows for c in row.cells), "abcd", strict=True):
        cell.text = text
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    inserted = (
        f"<w:p {space}><w:r><w:t>Cats</w:t></w:r><w:ins><w:r><w:t> pay half</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText> sleep</w:delText></w:r></w:del></w:p>"
    )
    controlled = (
        f"<w:sdt {space}><w:sdtContent><w:p><w:r><w:t>In a control</w:t></w:r></w:p>"
        "</w:sdtContent></w:sdt>"
    )
    for xml in (inserted, controlled):
        document.element.body.insert(-1, parse_xml(xml))
    return _saved(document)


def pptx() -> bytes:
    """Two slides; the second with a table and notes."""
    import pptx as library
    from pptx.util import Inches

    show = library.Presentation()
    first = show.slides.add_slide(show.slide_layouts[1])
    first.shapes.title.text = "Plan"
    first.placeholders[1].text = "Sail at dawn"
    second = show.slides.add_slide(show.slide_layouts[5])
    second.shapes.title.text = "Crew"
    table = second.shapes.add_table(1, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "Ada", "cook"
    second.notes_slide.notes_text_frame.text = "Ask about the cook."
    return _saved(show)


def xlsx() -> bytes:
    """Two sheets, the second hidden; a formula without a saved value; a cell far down."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Tides"
    sheet.append(["day", "height", "spring"])
    sheet.append([date(2024, 5, 9), 4.0, True])
    sheet["A3000"] = "last"
    sheet["B3000"] = "=SUM(B2:B2)"
    other = book.create_sheet("Notes")
    other["C2"] = "see harbour"
    other.sheet_state = "hidden"
    return _saved(book)


def _saved(document: object) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)  # type: ignore[attr-defined]
    return buffer.getvalue()
