"""PDFs of many pages, read in ranges side by side: what is on a page ends up on that page."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pypdf import PdfWriter
from reportlab.pdfgen.canvas import Canvas

from hipcli.documents import pdf_pages, pdf_reader, pdf_second
from hipcli.documents.child_process import WorkerRequest
from hipcli.documents.content import Content, Hints
from hipcli.documents.options import PdfLimits
from hipcli.documents.refusal import Refusal
from tests.hipcli.documents import pdfs


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_pages, "_FIRST_PAGES", 3)
    monkeypatch.setattr(pdf_pages, "_RANGE_PAGES", 4)
    monkeypatch.setattr(pdf_pages, "num_cores", lambda: 3)


def read(data: bytes, limits: PdfLimits | None = None) -> Content:
    return pdf_reader.read(data, Hints(pdf_limits=limits or PdfLimits()))


def texts(content: Content) -> list[str]:
    return [content.text[page.start_char : page.end_char] for page in content.pages]


def test_pages_labels_forms_and_scans_stay_where_they_are() -> None:
    def form(canvas: Canvas) -> None:
        canvas.drawString(72, 700, "The form")
        canvas.acroForm.textfield(name="owner", value="Mara Quill", x=72, y=600)

    def label(writer: PdfWriter) -> None:
        writer.set_page_label(0, 3, style="/r")
        writer.set_page_label(4, 11, style="/D")
        writer.add_outline_item("The form", 9)

    plan = [pdfs.text(f"page number {'abcdefghijkl'[i]}") for i in range(12)]
    plan[9], plan[5] = form, pdfs.scan()
    content = read(pdfs.rewrite(pdfs.draw(*plan), label))
    expected = [f"page number {'abcdefghijkl'[i]}" for i in range(12)]
    expected[9], expected[5] = "The form\n[form fields]\nowner: Mara Quill", ""
    assert texts(content) == expected
    assert [page.label for page in content.pages][:6] == ["i", "ii", "iii", "iv", "1", "2"]
    assert [entry.page for entry in content.outline] == [10]
    assert [message for _, message in content.warnings] == [
        "page 6 of 12 is images without text (OCR would be needed)"
    ]


def many(pages: dict[int, bytes], count: int, extra: tuple[bytes, ...] = ()) -> bytes:
    """`count` pages that say their number; some with other streams, object 3 being the first form.

    Args:
        pages: streams by index.
        extra: forms, objects from number 3 on, of which the first is /X.
    """
    first = 3 + len(extra)
    font = b"/Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>"
    forms = b"/XObject<</X 3 0 R>>" if extra else b""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents %d 0 R/Resources<<%s>>>>"
    kids = b" ".join(b"%d 0 R" % (first + index) for index in range(count))
    say = b"BT /F1 12 Tf 72 700 Td (this is page %d) Tj ET"
    return pdfs.assemble(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, count),
            *extra,
            *(page % (first + count + index, font + forms) for index in range(count)),
            *(pdfs.stream(pages.get(index, say % (index + 1))) for index in range(count)),
        ]
    )


def test_an_endless_page_in_a_later_range_costs_only_itself() -> None:
    tower = pdfs.tower_forms(depth=12, width=10, first_number=3)
    content = read(many({8: b"/X Do"}, 14, tower), PdfLimits(page_s=1.0))
    assert [page.number for page in content.pages if page.status != "text"] == [9]
    assert texts(content)[9] == "this is page 10"
    assert [code for code, _ in content.warnings] == ["pdf_failed_page", "pdf_failed_pages"]
    assert content.partial


def test_a_file_that_no_child_can_open_any_more_fails_by_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = pdf_pages.worker_events

    def events(request: WorkerRequest, stop: threading.Event | None = None) -> Iterator[dict]:
        if request.first_page == 7:
            raise Refusal("pdf_damaged", "gone")
        yield from real(request, stop)

    monkeypatch.setattr(pdf_pages, "worker_events", events)
    content = read(many({}, 16))
    assert [page.number for page in content.pages if page.status == "failed"] == [8, 9, 10, 11]
    assert texts(content)[11] == "this is page 12"
    assert len(content.pages) == 16
    assert "pages 8 to 11 cannot be read: gone" in content.warnings[0][1]


def test_what_strikes_while_children_work_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    running = []
    real = pdf_pages.worker_events

    def events(request: WorkerRequest, stop: threading.Event | None = None) -> Iterator[dict]:
        if request.first_page == 3:
            raise KeyboardInterrupt
        running.append(real(request, stop))
        yield from running[-1]

    monkeypatch.setattr(pdf_pages, "worker_events", events)
    tower = pdfs.tower_forms(depth=12, width=10, first_number=3)
    with pytest.raises(KeyboardInterrupt):
        read(many({8: b"/X Do"}, 14, tower))
    # Every child's generator has run to its end, which is where the child is killed and waited for.
    assert all(each.gi_frame is None for each in running)


def test_pages_beyond_all_measure_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_pages, "_MAX_PAGES", 5)
    with pytest.raises(Refusal, match="claims to have 6 pages"):
        read(many({}, 6))


def link(canvas: Canvas, words: str, target: str, y: int) -> None:
    canvas.drawString(72, y, words)
    canvas.linkURL(target, (72, y - 2, 72 + 6 * len(words), y + 10))


def test_links_are_kept_as_words_and_target() -> None:
    def page(canvas: Canvas) -> None:
        link(canvas, "the tide table", "https://tides.example/2024?port=4", 700)
        link(canvas, "www.harbour.example", "https://www.harbour.example/", 660)
        link(canvas, "write to us", "mailto:office@harbour.example", 620)
        link(canvas, "never", "javascript:alert(1)", 580)
        canvas.bookmarkPage("here")
        canvas.linkRect("", "here", (72, 500, 200, 520))

    content = read(pdfs.draw(page))
    assert content.text.split("\n")[-3:] == [
        "[links]",
        "the tide table: https://tides.example/2024?port=4",
        "write to us: mailto:office@harbour.example",
    ]
    assert "javascript" not in content.text


def test_the_publishers_link_on_every_page_is_dropped() -> None:
    def page(number: int) -> Callable[[Canvas], None]:
        def draw(canvas: Canvas) -> None:
            canvas.drawString(72, 700, f"page number {'abcdefgh'[number]}")
            link(canvas, "home", "https://press.example/home", 40)
            if number == 4:
                link(canvas, "the map", "https://maps.example/4", 600)

        return draw

    content = read(pdfs.draw(*[page(number) for number in range(8)]))
    assert content.text.count("press.example") == 0
    assert texts(content)[4].endswith("[links]\nthe map: https://maps.example/4")


def test_the_second_parser_finds_links_too() -> None:
    data = pdfs.draw(lambda canvas: link(canvas, "the map", "https://maps.example/4", 600))
    reader = pdf_second.open_reader(data, None)
    assert pdf_second.web_links(reader.pages[0]) == [["", "https://maps.example/4"]]
    plain = pdf_second.open_reader(pdfs.draw(pdfs.text("none")), None)
    assert pdf_second.web_links(plain.pages[0]) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of peak memory is the system's own")
def test_three_thousand_pages_take_no_more_memory_than_three_hundred(tmp_path: Path) -> None:
    def page(number: int) -> Callable[[Canvas], None]:
        lines = [f"Line {line} of page {number} {' '.join(pdfs.PROSE)[:60]}" for line in range(40)]
        return pdfs.text(*lines)

    code = (
        "import resource as r, sys; from hipcli.documents import ReadOptions, read_sources as read;"
        "document = read(sys.argv[1:], ReadOptions()).documents[0];"
        "peak = r.getrusage(r.RUSAGE_CHILDREN).ru_maxrss;"
        "print(peak, len(document.pages), document.text[-2500:])"
    )
    peaks = []
    for count in (300, 3000):
        file = tmp_path / f"{count}.pdf"
        file.write_bytes(pdfs.draw(*map(page, range(count))))
        command = [sys.executable, "-c", code, str(file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        peak, pages, *rest = done.stdout.split()
        assert int(pages) == count
        assert f"Line 20 of page {count - 1} " in " ".join(rest)
        # A child holds the bytes of the file, and pypdfium2 once more.
        peaks.append(int(peak) * 1024 - 2 * file.stat().st_size)
    assert peaks[1] < 1.2 * peaks[0]
