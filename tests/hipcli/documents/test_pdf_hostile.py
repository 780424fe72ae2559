"""Hostile and huge PDFs: each costs its own error, in bounded time and memory."""

import subprocess
import sys
import time
import zlib

import pytest

from hipcli.documents import child_process, pdf_reader
from hipcli.documents.content import Hints
from hipcli.documents.options import PdfLimits
from hipcli.documents.pdf_damage import damage
from hipcli.documents.refusal import Refusal
from tests.hipcli.documents import pdfs


def two_pages(first: bytes, second: bytes, extra: tuple[bytes, ...] = ()) -> bytes:
    """Two pages of the given streams; `extra` are objects from number 7 on."""
    font = b"/Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>"
    forms = b"/XObject<</X 7 0 R>>" if extra else b""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents %d 0 R/Resources<<%s>>>>"
    return pdfs.assemble(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[3 0 R 4 0 R]/Count 2>>",
            page % (5, font + forms),
            page % (6, font),
            first,
            second,
            *extra,
        ]
    )


SURVIVOR = pdfs.stream(b"BT /F1 12 Tf 72 700 Td (second page survives) Tj ET")


def test_endless_page_ends_and_costs_only_itself() -> None:
    tower = pdfs.tower_forms(depth=12, width=10, first_number=7)
    data = two_pages(pdfs.stream(b"/X Do"), SURVIVOR, tower)
    start = time.monotonic()
    content = pdf_reader.read(data, Hints(pdf_limits=PdfLimits(page_s=1.0)))
    assert time.monotonic() - start < 15
    assert [page.status for page in content.pages] == ["failed", "text"]
    assert content.text.strip() == "second page survives"
    assert content.partial
    assert any("longer than 1 s" in message for _, message in content.warnings)


def test_endless_only_page_is_an_error() -> None:
    data = pdfs.by_hand(b"/X Do", b"/XObject<</X 5 0 R>>", pdfs.tower_forms(12, 10, 5))
    with pytest.raises(Refusal, match="longer than"):
        pdf_reader.read(data, Hints(pdf_limits=PdfLimits(page_s=0.5)))


def test_total_time_is_bounded() -> None:
    data = pdfs.by_hand(b"/X Do", b"/XObject<</X 5 0 R>>", pdfs.tower_forms(12, 10, 5))
    with pytest.raises(Refusal, match="longer than 1 s"):
        pdf_reader.read(data, Hints(pdf_limits=PdfLimits(page_s=60.0, total_s=1.0)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_bomb_hits_the_memory_limit_and_costs_only_itself() -> None:
    bomb = pdfs.stream(b" " * (1 << 20), times=500)
    limits = PdfLimits(memory_bytes=300 << 20)
    content = pdf_reader.read(two_pages(bomb, SURVIVOR), Hints(pdf_limits=limits))
    assert [page.status for page in content.pages] == ["failed", "text"]
    assert "second page survives" in content.text


def test_text_without_measure_is_cut_off() -> None:
    data = pdfs.by_hand(b"BT /F1 1 Tf " + b"(aaaaaaaaaaaaaaaaaaaa) Tj " * 4000 + b"ET")
    with pytest.raises(Refusal, match="beyond all measure"):
        pdf_reader.read(data, Hints(pdf_limits=PdfLimits(text_bytes=20_000)))


@pytest.mark.parametrize(
    "objects",
    [
        # Pages that contain themselves, and a count that is a lie.
        [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 999999999>>"],
        [b"<</Type/Catalog/Pages 1 0 R>>"],
        [b"<</Type/Catalog/Pages 2 0 R>>", b"[" * 100_000],
    ],
)
def test_structures_without_end_are_refused(objects: list[bytes]) -> None:
    with pytest.raises(Refusal):
        pdf_reader.read(pdfs.assemble(objects), Hints(pdf_limits=PdfLimits(page_s=5.0)))


def test_form_that_draws_itself() -> None:
    inner = b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<</X 5 0 R>>>>"
    data = pdfs.by_hand(
        b"/X Do BT /F1 12 Tf 72 700 Td (here) Tj ET",
        b"/XObject<</X 5 0 R>>",
        [pdfs.stream(b"/X Do", inner)],
    )
    assert pdf_reader.read(data, Hints()).text == "here"


def test_field_that_is_its_own_parent() -> None:
    page = (
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Annots[5 0 R]"
        b"/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>"
    )
    data = pdfs.assemble(
        [
            b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[5 0 R]>>>>",
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            page,
            pdfs.stream(b"BT /F1 12 Tf 72 700 Td (form) Tj ET"),
            b"<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(value)/Parent 5 0 R/Rect[0 0 9 9]>>",
        ]
    )
    text = pdf_reader.read(data, Hints()).text
    assert text.startswith("form\n[form fields]\n")
    assert text.endswith(": value")


def test_child_is_gone_when_reading_is_broken_off() -> None:
    data = pdfs.by_hand(b"/X Do", b"/XObject<</X 5 0 R>>", pdfs.tower_forms(12, 10, 5))
    started = []
    popen = subprocess.Popen

    def remember(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **kwargs))  # type: ignore[call-overload]
        return started[-1]

    request = child_process.WorkerRequest(
        data, None, "pdfium", 0, PdfLimits(), time.monotonic() + 60
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", remember)
        events = child_process.worker_events(request)
        assert next(events) == {"event": "ready"}
        events.close()
    assert started[0].poll() is not None


def test_a_folder_named_like_a_module_is_not_imported(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` puts the current folder first on the import path; the child must not."""
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "json.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(folder)
    content = pdf_reader.read(pdfs.draw(pdfs.text("safe")), Hints())
    assert content.text == "safe"


PACKED = zlib.compress(bytes(range(256)) * 20)


@pytest.mark.parametrize(
    "packed, whole",
    [
        (b"", True),
        (PACKED, True),
        (PACKED + b"\r\n", True),
        # The checksum is missing.
        (PACKED[:-4], True),
        (PACKED[:-20], False),
        (PACKED[:200] + b"zzzz" + PACKED[204:], False),
        (PACKED[:-4] + b"sum?", False),
        (b"no stream", False),
    ],
)
def test_damaged_streams_are_told_from_whole_ones(packed: bytes, whole: bool) -> None:
    body = b"1 0 obj<</Filter[/FlateDecode]/Length 9>>stream\n%s\nendstream endobj" % packed
    assert (damage(b"%PDF-1.7\n" + body + b"\n%%EOF") == []) == whole
    picture = body.replace(b"<</Filter", b"<</Subtype/Image/Filter")
    assert damage(b"%PDF-1.7\n" + picture + b"\n%%EOF") == []


def test_a_newer_version_that_was_cut_off_is_noticed() -> None:
    whole = b"%PDF-1.7\n1 0 obj<<>>endobj\n%%EOF\n"
    assert damage(whole) == damage(whole + b"\0 appended by a server") == []
    assert [code for code, _ in damage(whole + b"1 0 obj<</New true")] == ["pdf_cut_off"]
