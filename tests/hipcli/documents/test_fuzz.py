"""Every reader, given bytes that are nearly right: text or a typed refusal, nothing else."""

import io
import random
import zipfile
from importlib import util

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hipcli.documents import ReadOptions
from hipcli.documents.docx_parts import parts as docx_parts
from hipcli.documents.epub_parts import parts as epub_parts
from hipcli.documents.html_text import html_to_text
from hipcli.documents.pdf_columns import reading_order
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


def check(data: bytes, name: str) -> None:
    document = read_bytes(data, name, ReadOptions())
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
