"""Every reader, given bytes that are nearly right: text or a typed refusal, nothing else."""

import io
import json
import random
import re
import zipfile
from importlib import util

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reportlab.pdfgen.canvas import Canvas

from hipcli.documents import PdfLimits, ReadOptions, parse_file_list
from hipcli.documents.docx_parts import parts as docx_parts
from hipcli.documents.epub_parts import parts as epub_parts
from hipcli.documents.html_text import html_to_text
from hipcli.documents.pdf_columns import reading_order
from hipcli.documents.pdf_damage import damage
from hipcli.documents.running_lines import drop_running_lines
from hipcli.documents.sources import read_bytes
from tests.hipcli.documents import offices, pdfs

QUICK = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
OFFICE = all(util.find_spec(name) for name in ("docx", "pptx", "openpyxl"))
TAGS = ["<p>", "</p>", "<table>", "<td>", "</tr>", "<li>", "<ol>", "</ol>", "<pre>", "</pre>"]
TAGS += ["<script>", "</script>", "<!--", "-->", "<![CDATA[", "<svg>", "</svg>", "<h1>", "</h1>"]
TAGS += ["&amp;", "&#xD800;", "&", "<", ">", '<a href="', "</body>", "<title>", "\r\n", "\0"]


def mutate(data: bytes, seed: int) -> bytes:
    """The file with some bytes changed, cut out, repeated or swapped."""
    chance = random.Random(seed)
    changed = bytearray(data)
    for _ in range(chance.randint(1, 12)):
        at, length = chance.randrange(len(changed) or 1), chance.randint(1, 40)
        piece = changed[at : at + length]
        changed[at : at + length] = chance.choice(
            [bytes(chance.randrange(256) for _ in piece), b"", piece * 3, piece[::-1]]
        )
    return bytes(changed)


def repacked(data: bytes, seed: int) -> bytes:
    """A container whose members are damaged, while the container is sound."""
    chance = random.Random(seed)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            damaged = chance.random() < 0.2 and name != "mimetype"
            new.writestr(name, mutate(content, seed) if damaged and content else content)
    return buffer.getvalue()


def check(data: bytes, name: str, limits: PdfLimits | None = None) -> None:
    document = read_bytes(data, name, ReadOptions(pdf_limits=limits or PdfLimits()))
    assert document.status in ("read", "partial") if document.text else document.reason
    document.text.encode("utf-8")
    for page in document.pages:
        assert 0 <= page.start_char <= page.end_char <= len(document.text)


@QUICK
@given(st.binary(max_size=400), st.sampled_from(["a.txt", "a.md", "a.py", "a.html", "a", "a.csv"]))
def test_bytes(data: bytes, name: str) -> None:
    check(data, name)


@QUICK
@given(st.lists(st.one_of(st.sampled_from(TAGS), st.text(max_size=8)), max_size=40).map("".join))
def test_html(html: str) -> None:
    text, _ = html_to_text(html)
    assert "\n\n\n" not in text or "<pre>" in html
    check(html.encode("utf-8", "surrogatepass"), "a.html")


@QUICK
@given(st.integers(0, 1 << 32))
def test_books_in_this_process(seed: int) -> None:
    """The reading itself may raise whatever it likes in its child; it may not crash or hang."""
    for data in (mutate(offices.epub(), seed), repacked(offices.epub(), seed)):
        try:
            parts = list(epub_parts(data))
        except Exception:
            continue
        assert all(isinstance(text, str) for _, text in parts)


@pytest.mark.skipif(not OFFICE, reason="the extra hipcli[office] is not installed")
def test_word_files_in_this_process() -> None:
    data = offices.docx()
    for seed in range(25):
        try:
            parts = list(docx_parts(repacked(data, seed)))
        except Exception:
            continue
        assert all(isinstance(text, str) for _, text in parts)


@pytest.mark.skipif(not OFFICE, reason="the extra hipcli[office] is not installed")
@pytest.mark.parametrize("kind", ["docx", "pptx", "xlsx", "epub"])
@pytest.mark.parametrize("seed", [1, 2])
def test_containers(kind: str, seed: int) -> None:
    data = getattr(offices, kind)()
    check(mutate(data, seed), f"a.{kind}")
    check(repacked(data, seed), f"a.{kind}")


@pytest.mark.parametrize("seed", range(6))
def test_pdfs(seed: int) -> None:
    check(mutate(pdfs.draw(pdfs.text(*pdfs.PROSE), pdfs.text("two")), seed), "a.pdf")
    check(misspelt(rich_pdf(), seed), "a.pdf")


def rich_pdf() -> bytes:
    """A PDF with forms, links, an outline and labels, none of it packed."""

    def page(canvas: Canvas) -> None:
        canvas.drawString(72, 700, "the tide table")
        canvas.linkURL("https://tides.example/4", (72, 698, 160, 712))
        canvas.acroForm.textfield(name="owner", value="Mara Quill", x=72, y=600)
        canvas.bookmarkPage("here")
        canvas.addOutlineEntry("Here", "here")

    buffer = io.BytesIO()
    canvas = Canvas(buffer, pageCompression=0, invariant=1)
    for _ in range(3):
        page(canvas)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def misspelt(data: bytes, seed: int) -> bytes:
    """A PDF whose words and numbers are mixed up, while most of its syntax is sound."""
    chance = random.Random(seed)
    words = list(re.finditer(rb"/[A-Za-z]+|\b\d+\b|\d+ 0 R", data))
    changed, shift = bytearray(data), 0
    for at in sorted(chance.sample(range(len(words)), min(len(words), chance.randint(1, 20)))):
        start, end = words[at].start() + shift, words[at].end() + shift
        others = [
            b"-1",
            b"99999999999",
            b"0",
            b"null",
            b"[",
            b"<<",
            b"4 0 R",
            chance.choice(words)[0],
        ]
        new = chance.choice(others)
        changed[start:end] = new
        shift += len(new) - (end - start)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_pdfs(block: int) -> None:
    sources = [
        rich_pdf(),
        pdfs.draw(pdfs.text(*pdfs.PROSE), pdfs.scan()),
        pdfs.composite_font(["a"]),
    ]
    limits = PdfLimits(page_s=5.0, total_s=20.0, restarts=1)
    for seed in range(30 * block, 30 * block + 30):
        data = sources[seed % 3]
        data = misspelt(data, seed) if seed % 2 else mutate(data, seed)
        check(data, "a.pdf", limits)


@pytest.mark.slow
@pytest.mark.skipif(not OFFICE, reason="the extra hipcli[office] is not installed")
@pytest.mark.parametrize("kind", ["docx", "pptx", "xlsx", "epub"])
def test_many_containers(kind: str) -> None:
    data = getattr(offices, kind)()
    for seed in range(40):
        check(repacked(data, seed) if seed % 2 else mutate(data, seed), f"a.{kind}")


ENCODINGS = [
    "utf-8",
    "utf-16",
    "utf-16-le",
    "utf-32",
    "cp1252",
    "shift_jis",
    "gb18030",
    "iso2022_jp",
]


@QUICK
@given(
    st.text(st.characters(codec="utf-8"), max_size=200),
    st.sampled_from(ENCODINGS),
    st.integers(0, 99),
    st.sampled_from([None, *ENCODINGS]),
)
def test_damaged_text_in_any_encoding(
    text: str, encoding: str, seed: int, told: str | None
) -> None:
    data = mutate(text.encode(encoding, "replace"), seed)
    for options in (ReadOptions(), ReadOptions(encoding=told)):
        document = read_bytes(data, "a.txt", options)
        assert document.text or document.reason
        document.text.encode("utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=6) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["cells", "source", "outputs", "cell_type", "text", "data", "nbformat"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@QUICK
@given(JSON, st.lists(JSON, max_size=4))
def test_notebooks_of_any_shape(whole: object, cells: list[object]) -> None:
    for shape in (whole, {"nbformat": 4, "cells": cells}, {"worksheets": [{"cells": cells}]}):
        check(json.dumps(shape).encode(), "a.ipynb")


@QUICK
@given(st.binary(max_size=200), st.booleans())
def test_lists_of_files(data: bytes, nul: bool) -> None:
    for name in parse_file_list(data, nul=nul):
        # Without -0 a NUL stays in the name, and no file has that: it is refused as a source.
        assert name and not (nul and "\0" in name)


@QUICK
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"%PDF-1.7\n1 0 obj <</Filter/FlateDecode>>stream\n"]),
)
def test_looking_for_damage(data: bytes, head: bytes) -> None:
    for code, message in damage(head + data + b"\nendstream %%EOF"):
        assert code and message


@QUICK
@given(st.lists(st.text(alphabet="ab1\n -", max_size=30), max_size=12))
def test_running_lines(pages: list[str]) -> None:
    found = drop_running_lines(pages, [None] * len(pages))
    for before, after in zip(pages, found, strict=True):
        assert bool(before.strip()) == bool(after.strip())


BOX = st.tuples(st.floats(0, 600), st.floats(0, 800), st.floats(0, 300), st.floats(0, 30)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


@QUICK
@given(st.lists(BOX, min_size=8, max_size=40))
def test_columns_lose_no_box(boxes: list[tuple[float, float, float, float]]) -> None:
    order = reading_order(boxes)
    if order is not None:
        assert sorted(at for line in order for at in line) == list(range(len(boxes)))
