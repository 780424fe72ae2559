"""PDFs as they are typeset: outlines, columns, running headers; the right text for each."""

import random
from collections.abc import Sequence

import pytest
from pypdf import PdfWriter
from reportlab.pdfgen.canvas import Canvas

from hipcli.documents import OutlineEntry, pdf_reader
from hipcli.documents.content import Content, Hints
from hipcli.documents.pdf_columns import reading_order
from hipcli.documents.running_lines import drop_running_lines
from tests.hipcli.documents import pdfs

LEFT = [f"The left column goes on in line {i:02d} of it" for i in range(12)]
RIGHT = [f"And the right one has its line {i:02d} here" for i in range(12)]


WORDS = ("anchor", "barge", "cable", "dinghy", "engine", "ferry", "galley", "harbour", "jetty")

FOURTH = "dinghy a\nb dinghy\n"


def read(data: bytes) -> Content:
    return pdf_reader.read(data, Hints())


def test_bookmarks_are_the_outline() -> None:
    def mark(writer: PdfWriter) -> None:
        storms = writer.add_outline_item("Storms  at\nsea", 1)
        writer.add_outline_item("Winter", 2, parent=storms)
        writer.add_outline_item("Calm", 3)

    plain = pdfs.draw(*[pdfs.text(f"page {i}") for i in range(4)])
    assert read(plain).outline == ()
    assert read(pdfs.rewrite(plain, mark)).outline == (
        OutlineEntry("Storms at sea", 1, 2),
        OutlineEntry("Winter", 2, 3),
        OutlineEntry("Calm", 1, 4),
    )


def columns(rows: bool, title: str = "", left: Sequence[str] = LEFT) -> bytes:
    """A page of two columns, drawn row by row or one after the other."""

    def page(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 10)
        if title:
            canvas.drawString(72, 760, title)
        first = [(72, 730 - 14 * i, line) for i, line in enumerate(left)]
        right = [(320, 730 - 14 * i, line) for i, line in enumerate(RIGHT)]
        pairs = [item for both in zip(first, right, strict=True) for item in both]
        for x, y, line in pairs if rows else [*first, *right]:
            canvas.drawString(x, y, line)

    return pdfs.draw(page)


@pytest.mark.parametrize("rows", [True, False])
def test_columns_are_read_one_after_the_other(rows: bool) -> None:
    title = "A title that goes over both columns of the page, from edge to edge of it"
    assert read(columns(rows, title)).text.split("\n") == [title, *LEFT, *RIGHT]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_many_columns_are_read_one_after_the_other(count: int) -> None:
    title = "A title that goes over all the columns of this wide page, from one edge to the other"
    texts = [
        [f"column {'abcde'[c]} has line {i:02d} here" for i in range(14)] for c in range(count)
    ]

    def page(canvas: Canvas) -> None:
        canvas.setPageSize((200 * count, 842))
        canvas.setFont("Helvetica", 20)
        canvas.drawString(40, 800, title[: 20 * count])
        canvas.setFont("Helvetica", 10)
        for i in range(14):
            for c in range(count):
                canvas.drawString(40 + 170 * c, 760 - 14 * i, texts[c][i])

    lines = read(pdfs.draw(page)).text.split("\n")
    assert lines == [title[: 20 * count].strip(), *(line for text in texts for line in text)]


def test_a_table_of_three_columns_stays_rows() -> None:
    rows = [(f"Port {i}", f"{i * 100} boats", "open" if i % 2 else "shut") for i in range(20)]

    def page(canvas: Canvas) -> None:
        for i, row in enumerate(rows):
            for x, cell in zip((72, 240, 420), row, strict=True):
                canvas.drawString(x, 730 - 14 * i, cell)

    lines = read(pdfs.draw(page)).text.split("\n")
    assert [line.split() for line in lines] == [" ".join(row).split() for row in rows]


def test_a_hyphen_at_the_end_of_a_column_line_is_mended() -> None:
    left = [*LEFT[:3], "Here is all that we have by way of infor-", "mation of it.", *LEFT[5:]]
    text = read(columns(True, left=left)).text
    assert "by way of information\nof it." in text


def test_rows_of_a_table_stay_rows() -> None:
    def page(canvas: Canvas) -> None:
        for i in range(20):
            canvas.drawString(
                72, 730 - 14 * i, f"Port {i}" + " of the harbour office" * (i % 5 == 0)
            )
            canvas.drawString(400, 730 - 14 * i, f"{i * 100} boats")

    lines = read(pdfs.draw(page)).text.split("\n")
    assert [line for line in lines if "Port 7" in line] == ["Port 7 700 boats"]


def test_words_drawn_one_by_one_are_no_columns() -> None:
    chance = random.Random(1)
    boxes, y = [], 700.0
    for _ in range(40):
        x = 72.0
        while x < 480:
            width = chance.uniform(8, 60)
            boxes.append((x, y, x + width, y + 10))
            x += width + 4
        y -= 13
    assert reading_order(boxes) is None


def test_columns_between_lines_across_the_page() -> None:
    def line(x: float, y: float, width: float) -> tuple[float, float, float, float]:
        return (x, y, x + width, y + 10)

    boxes = [line(0, 300, 400)]
    for i in range(6):
        boxes += [line(0, 280 - 12 * i, 180), line(210, 280 - 12 * i, 185)]
    boxes.append(line(0, 190, 390))
    for i in range(6):
        boxes += [line(0, 170 - 12 * i, 180), line(210, 170 - 12 * i, 185)]
    order = reading_order(boxes)
    assert order is not None
    flat = [at for entry in order for at in entry]
    first, second = [*range(1, 13, 2), *range(2, 13, 2)], [*range(14, 26, 2), *range(15, 26, 2)]
    assert flat == [0, *first, 13, *second]
    assert reading_order(boxes[:1] * 50) is None


def test_headers_and_footers_go_and_pages_stay() -> None:
    plan = [
        pdfs.text("The Lighthouse", f"An {WORDS[i]} came.", f"{WORDS[-i]} left.", f"- {i + 11} -")
        for i in range(6)
    ]
    content = read(pdfs.draw(*plan))
    assert [content.text[p.start_char : p.end_char] for p in content.pages] == [
        f"An {WORDS[i]} came.\n{WORDS[-i]} left." for i in range(6)
    ]


@pytest.mark.parametrize(
    ("pages", "kept"),
    [
        # Numbers that do not count pages are data.
        (
            [f"Totals\n{w} a\nb {w}\nSum: {i * i + 5}" for i, w in enumerate(WORDS)],
            FOURTH + "Sum: 14",
        ),
        ([f"{w} a\nb {w}\nPage {i + 1} of 9" for i, w in enumerate(WORDS)], FOURTH.strip()),
        # Left and right pages have their own.
        (
            [f"{'Odd' if i % 2 else 'Even'} side\n{w} a\nb {w}" for i, w in enumerate(WORDS)],
            FOURTH.strip(),
        ),
        # What is behind a line of the text is no header.
        ([f"{w} a\nsame\nb {w}\n{w}\n{w}" for w in WORDS], None),
        # A line that is on every page, in its middle, is no running one.
        ([f"a{i * i}x\nb{i * i}x\nsame\nc{i * i}x\nd{i * i}x" for i in range(6)], None),
        # A page that is nothing else stays.
        (["Header\nFooter"] * 6, None),
        (["Header\nbody"] * 3, None),
    ],
)
def test_what_is_a_running_line(pages: list[str], kept: str | None) -> None:
    found = drop_running_lines(pages, [None] * len(pages))
    assert found[3 if len(pages) > 3 else 0] == (
        pages[min(3, len(pages) - 1)] if kept is None else kept
    )


def test_roman_numbers_that_the_file_calls_labels_go() -> None:
    labels = ["i", "ii", "iii", "iv", "v"]
    pages = [
        f"body {label} {i * i}\nmore {i * i}x\nand {i}y{i}\n{label}"
        for i, label in enumerate(labels)
    ]
    assert drop_running_lines(pages, labels)[1] == "body ii 1\nmore 1x\nand 1y1"
