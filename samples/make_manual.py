"""Sets `manual/*.md` as `manual.pdf`: title page, contents, roman then arabic page labels.

The manual describes an invented greenhouse controller. Its text is kept in Markdown so that it can
be read and changed without Python; this script knows only how it looks. The same text gives the
same bytes: no date, no random id, no compression whose output depends on the zlib at hand.

Run: python samples/make_manual.py [-o samples/manual.pdf]      (needs reportlab)
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import manual_figures
from manual_blocks import Block, inline, read_blocks
from reportlab.lib import colors
from reportlab.lib.enums import TA_CENTER
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    KeepTogether,
    ListFlowable,
    ListItem,
    NextPageTemplate,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
    TableStyle,
)
from reportlab.platypus.tableofcontents import TableOfContents

HERE = Path(__file__).resolve().parent
TITLE = "GC-8 Greenhouse Controller"
SUBTITLE = "Installation and operating manual"
EDITION = "OM-0847-E6, sixth edition, March 2024"
MARGIN = 25 * mm
TEXT_WIDTH = A4[0] - 2 * MARGIN
UNBROKEN_ROWS = 16
ROMAN = ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii")

GREEN = manual_figures.GREEN
GREY = manual_figures.GREY
PALE = manual_figures.PALE

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=10.6, leading=14.2, spaceAfter=7)
LEAD_IN = ParagraphStyle("lead-in", BODY, keepWithNext=1)
CELL = ParagraphStyle("cell", fontName="Helvetica", fontSize=8.8, leading=11)
HEAD_CELL = ParagraphStyle("head", CELL, fontName="Helvetica-Bold", textColor=colors.white)
CAPTION = ParagraphStyle(
    "caption", CELL, textColor=GREY, alignment=TA_CENTER, spaceBefore=4, spaceAfter=10
)
CHAPTER = ParagraphStyle(
    "chapter", fontName="Helvetica-Bold", fontSize=22, leading=27, textColor=GREEN, spaceAfter=14
)
SECTION = ParagraphStyle(
    "section",
    fontName="Helvetica-Bold",
    fontSize=13,
    leading=16,
    spaceBefore=10,
    spaceAfter=5,
    keepWithNext=1,
)
TOPIC = ParagraphStyle("topic", SECTION, leading=16, spaceBefore=8)
BOX = ParagraphStyle("box", BODY, spaceAfter=0)
TOC_STYLES = [
    ParagraphStyle("toc0", fontName="Helvetica-Bold", fontSize=9.6, leading=11.5, spaceBefore=2),
    ParagraphStyle("toc1", fontName="Helvetica", fontSize=9, leading=10, leftIndent=14),
]


class Heading(Paragraph):
    """A heading that enters the contents and the outline when it is laid down.

    Args:
        title: the whole heading, as in the contents.
        shown: its markup on the page.
        level: 0 a chapter, 1 a section.
    """

    def __init__(self, title: str, shown: str, style: ParagraphStyle, level: int) -> None:
        super().__init__(shown, style)
        self.title, self.level = title, level


class ManualTemplate(BaseDocTemplate):
    """The document: three kinds of page, running heads, page labels."""

    def __init__(self, filename: str) -> None:
        super().__init__(
            filename,
            pagesize=A4,
            title=f"Orrinmere {TITLE}",
            author="Orrinmere",
            subject=SUBTITLE,
            creator="make_manual.py",
            lang="en-GB",
            invariant=1,
            pageCompression=0,
        )
        frame = Frame(MARGIN, MARGIN, TEXT_WIDTH, A4[1] - 2 * MARGIN, 0, 0, 0, 0)
        self.addPageTemplates(
            [
                PageTemplate("title", frame, onPage=draw_title_page),
                PageTemplate("front", frame, onPageEnd=self.draw_page_edges),
                PageTemplate("body", frame, onPageEnd=self.draw_page_edges),
            ]
        )
        self.num_front_pages = 0
        self.chapter = ""

    def beforeDocument(self) -> None:  # noqa: N802 - the name is reportlab's
        self.chapter = ""
        self.canv.addPageLabel(0, "ROMAN_LOWER", 1)
        self.canv.setViewerPreference("DisplayDocTitle", "true")
        self.canv.showOutline()

    def label(self, page: int) -> str:
        """The label printed on a page, from its physical number (1 = the title page)."""
        if page <= self.num_front_pages:
            return ROMAN[page - 1]
        return str(page - self.num_front_pages)

    def afterFlowable(self, flowable: Flowable) -> None:  # noqa: N802 - the name is reportlab's
        if not isinstance(flowable, Heading):
            return
        key = f"h{self.page}-{flowable.title}"
        if flowable.level == 0:
            if not self.chapter:
                # The contents grow between the first pass and the second: count anew each time.
                self.num_front_pages = self.page - 1
                self.canv.addPageLabel(self.num_front_pages, "ARABIC", 1)
            self.chapter = flowable.title
        self.canv.bookmarkPage(key)
        self.canv.addOutlineEntry(flowable.title, key, flowable.level, closed=True)
        self.notify("TOCEntry", (flowable.level, inline(flowable.title), self.page, key))

    def draw_page_edges(self, canvas: Canvas, _doc: BaseDocTemplate) -> None:
        """The running head, the rule under it, and the label at the foot."""
        canvas.saveState()
        canvas.setFont("Helvetica", 8)
        canvas.setFillColor(GREY)
        canvas.setStrokeColor(GREEN)
        canvas.setLineWidth(0.6)
        top = A4[1] - 17 * mm
        canvas.drawRightString(A4[0] - MARGIN, top, self.chapter)
        canvas.line(MARGIN, top - 4, A4[0] - MARGIN, top - 4)
        canvas.drawCentredString(A4[0] / 2, 14 * mm, self.label(canvas.getPageNumber()))
        canvas.restoreState()


def draw_title_page(canvas: Canvas, _doc: BaseDocTemplate) -> None:
    """The title page, all of it drawn."""
    width, height = A4
    canvas.saveState()
    canvas.setFillColor(GREEN)
    canvas.rect(0, height - 92 * mm, width, 92 * mm, stroke=0, fill=1)
    canvas.setFillColor(colors.white)
    canvas.setFont("Helvetica", 15)
    canvas.drawString(MARGIN, height - 40 * mm, "ORRINMERE")
    canvas.setFont("Helvetica-Bold", 30)
    canvas.drawString(MARGIN, height - 60 * mm, TITLE)
    canvas.setFont("Helvetica", 15)
    canvas.drawString(MARGIN, height - 72 * mm, SUBTITLE)
    picture = manual_figures.greenhouse()
    picture.drawOn(canvas, (width - picture.width) / 2, 96 * mm)
    canvas.setFillColor(GREY)
    canvas.setFont("Helvetica", 10)
    canvas.drawString(MARGIN, 38 * mm, "For firmware 4.2 and later")
    canvas.drawString(MARGIN, 32 * mm, EDITION)
    canvas.restoreState()


def heading(block: Block) -> list[Flowable]:
    """A chapter opens a page; a section never stands alone at the foot of one."""
    title = block.lines[0]
    if block.kind == "topic":
        return [Paragraph(inline(title), TOPIC)]
    if block.kind == "section":
        return [Heading(title, inline(title), SECTION, 1)]
    number, name = title.split(" ", 1)
    shown = title if number.isdigit() else f"Appendix {number}<br/>{name}"
    full = title if number.isdigit() else f"Appendix {number} {name}"
    return [PageBreak(), Heading(full, shown, CHAPTER, 0)]


def column_widths(rows: list[list[str]]) -> list[float]:
    """Widths in points that fill the text width; wide columns give way first."""
    padding = 12
    wanted = [
        max(stringWidth(re.sub(r"[*`]", "", cell), "Helvetica-Bold", 9) for cell in column)
        + padding
        for column in zip(*rows, strict=True)
    ]
    # An empty column is there to be written in.
    wanted = [
        max(width, 90.0) if not any(r[i] for r in rows[1:]) else width
        for i, width in enumerate(wanted)
    ]
    excess = sum(wanted) - TEXT_WIDTH
    if excess > 0:
        share = TEXT_WIDTH / len(wanted)
        spare = [max(0.0, width - share) for width in wanted]
        return [w - excess * s / sum(spare) for w, s in zip(wanted, spare, strict=True)]
    return [width - excess / len(wanted) for width in wanted]


def table(lines: tuple[str, ...]) -> Flowable:
    """A table with a green head that is repeated where it breaks over pages."""
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if set(line) - set("-|")]
    cells = [
        [Paragraph(inline(c), CELL if i else HEAD_CELL) for c in row] for i, row in enumerate(rows)
    ]
    style = [
        ("BACKGROUND", (0, 0), (-1, 0), GREEN),
        ("ROWBACKGROUNDS", (0, 1), (-1, -1), (colors.white, PALE)),
        ("LINEBELOW", (0, 1), (-1, -1), 0.3, manual_figures.RULE),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("TOPPADDING", (0, 0), (-1, -1), 2.6),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 3),
    ]
    return Table(
        cells,
        column_widths(rows),
        style=TableStyle(style),
        repeatRows=1,
        splitByRow=len(rows) > UNBROKEN_ROWS,
        spaceBefore=4,
        spaceAfter=12,
    )


def box(lines: tuple[str, ...]) -> Flowable:
    """A warning, caution or note behind a green bar."""
    style = TableStyle(
        [
            ("BACKGROUND", (0, 0), (-1, -1), PALE),
            ("LINEBEFORE", (0, 0), (0, -1), 3, GREEN),
            ("LEFTPADDING", (0, 0), (-1, -1), 10),
            ("TOPPADDING", (0, 0), (-1, -1), 5),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 7),
        ]
    )
    text = Paragraph(inline(" ".join(lines)), BOX)
    return Table([[text]], [TEXT_WIDTH], style=style, spaceBefore=3, spaceAfter=10)


def figure(line: str) -> Flowable:
    """A drawing of `manual_figures` with its caption."""
    caption, name = re.fullmatch(r"\[(.*)\]\((\w+)\)", line).groups()
    drawing = getattr(manual_figures, name)()
    drawing.hAlign = "CENTER"
    return KeepTogether([Spacer(1, 4), drawing, Paragraph(inline(caption), CAPTION)])


def listing(block: Block) -> Flowable:
    """Numbered steps or dots."""
    items = [ListItem(Paragraph(inline(line), BODY), spaceAfter=0) for line in block.lines]
    look = (
        {"bulletType": "1", "bulletFormat": "%s."}
        if block.kind == "steps"
        else {"bulletType": "bullet", "start": "•"}
    )
    return ListFlowable(
        items, leftIndent=18, bulletFontSize=10, bulletFontName="Times-Roman", spaceAfter=7, **look
    )


def flowables(block: Block, next_kind: str) -> list[Flowable]:
    """What is laid down for a block, given the kind of the block after it."""
    if block.kind in ("chapter", "section", "topic"):
        return heading(block)
    if block.kind == "text":
        style = LEAD_IN if next_kind == "table" else BODY
        return [Paragraph(inline(" ".join(block.lines)), style)]
    if block.kind == "table":
        return [table(block.lines)]
    if block.kind == "box":
        return [box(block.lines)]
    if block.kind == "figure":
        return [figure(block.lines[0])]
    return [listing(block)]


def read_chapter(path: Path) -> Iterator[Flowable]:
    """Everything that is laid down for a file of the manual."""
    blocks = list(read_blocks(path.read_text(encoding="utf-8")))
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        yield from flowables(block, after.kind if after else "")


def build(output: Path) -> None:
    """Writes the manual as a PDF."""
    document = ManualTemplate(str(output))
    contents = TableOfContents(
        levelStyles=TOC_STYLES, dotsMinLevel=-1, formatter=lambda page: document.label(page)
    )
    notices, *chapters = sorted((HERE / "manual").glob("*.md"))
    story: list[Flowable] = [NextPageTemplate("front"), Spacer(1, 1), PageBreak()]
    story += read_chapter(notices)
    story += [PageBreak(), Paragraph("Contents", CHAPTER), contents, NextPageTemplate("body")]
    for chapter in chapters:
        story += read_chapter(chapter)
    document.multiBuild(story)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sets the sample manual as a PDF.")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "manual.pdf")
    build(parser.parse_args().output)


if __name__ == "__main__":
    main()
