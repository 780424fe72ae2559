"""HTML, office files and books: what is read of them, and what of hostile ones is said."""

import sys
from html.parser import HTMLParser
from importlib import util

import pytest

from hipcli.documents import Document, ReadOptions
from hipcli.documents.html_text import html_to_text
from hipcli.documents.options import PdfLimits
from hipcli.documents.sources import read_bytes
from tests.hipcli.documents import offices

needs_office = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("docx", "pptx", "openpyxl")),
    reason="the extra hipcli[office] is not installed",
)
PAGE = """<!DOCTYPE html><html><head><title>Ports</title><style>p { color: red }</style>
<script>alert("never")</script></head><body><nav><a href="/x">Home</a></nav>
<h1>Ports &amp; pumps</h1><p>The <b>pump</b>
 runs <a href="https://example.org">day and night</a>.<br>Always.</p>
<ul><li>one<ul><li>inner</li></ul></li><li>two</ol></ul><ol><li>first<li>second</ol>
<table><tr><th>Port</th><th>Use</th></tr><tr><td><p>80</p></td><td>web<br>pages</td></tr></table>
<pre>if x:
    go()

done</pre><img src="a.png" alt="a map"><p>Ende</body></html>"""


def read(data: bytes, name: str, options: ReadOptions | None = None) -> Document:
    return read_bytes(data, name, options or ReadOptions())


def test_html_keeps_structure_and_drops_the_rest() -> None:
    document = read(PAGE.encode(), "page.html")
    assert (document.kind, document.status, document.encoding) == ("html", "read", "utf-8")
    assert document.text.split("\n") == [
        "Ports",
        "",
        "Home",
        "",
        "# Ports & pumps",
        "",
        "The pump runs day and night.",
        "Always.",
        "",
        "- one",
        "  - inner",
        "- two",
        "",
        "1. first",
        "2. second",
        "",
        "Port | Use",
        "80 | web pages",
        "",
        "if x:",
        "    go()",
        "",
        "done",
        "",
        "[image: a map]",
        "",
        "Ende",
    ]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a<script>b</p>", "a"),
        ("<p>a<script>b</script>c", "ac"),
        ("<svg><text>x</text></svg>y", "y"),
        ("<script/>seen", "seen"),
        ("&lt;b&gt; &nbsp;x", "<b> \xa0x"),
        ("<div>" * 5000 + "deep", "deep"),
        ("<", "<"),
        ("a < b and c > d", "a < b and c > d"),
        ("<p>a<![foo[bar]]>b<![if x]>c<![endif]><![ x]>d", "abcd"),
        ("<p><![CDATA[a < b]]></p>", "a < b"),
        ("<p>a<!DOCTYPE", "a<!DOCTYPE"),
    ],
)
def test_html_of_all_sorts(html: str, text: str) -> None:
    assert html_to_text(html)[0] == text


@pytest.mark.parametrize("piece", ["<a ", "</", "<!--", "<?x", "<!x", '<a b="', "<a x x x x"])
def test_markup_without_an_end_is_looked_for_few_times(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(self: HTMLParser, i: int, *rest: object) -> int:
        nonlocal looks
        looks += 1
        return -1

    for name in ("starttag", "endtag", "comment", "pi", "html_declaration"):
        monkeypatch.setattr(HTMLParser, f"parse_{name}", counted)
    html = f"<{'x' * 9}" + piece * 20_000
    assert html_to_text(html)[0] == html.strip()
    assert looks < 50


def test_html_says_its_encoding_and_large_pages_are_read_in_a_child() -> None:
    page = '<meta charset="koi8-r"><p>Привет, мир</p>'.encode("koi8_r")
    document = read(page, "a.htm")
    assert (document.text, document.encoding) == ("Привет, мир", "koi8-r")
    large = b"<p>line</p>\n" * 40_000
    document = read(large, "b.html")
    assert document.text.count("line") == 40_000
    slow = read(large * 8, "c.html", ReadOptions(pdf_limits=PdfLimits(total_s=0.05)))
    assert (slow.status, slow.code) == ("failed", "office_failed")


def test_an_epub_has_chapters_in_reading_order() -> None:
    document = read(offices.epub(), "book.epub")
    assert document.kind == "epub" and document.status == "read"
    labels = [(page.number, page.label, page.status) for page in document.pages]
    assert labels == [(1, "The Storm", "text"), (2, "The Calm", "text"), (3, None, "empty")]
    assert (
        document.text == "t\n\n# The Storm\n\nWind & rain.\n## The Calm\n\nA key lay at low tide.\n"
    )
    again = offices.PACKAGE.replace('<itemref idref="b"/>', '<itemref idref="b"/>' * 3)
    assert read(offices.epub({"OEBPS/book.opf": again}), "d.epub").text.count("low tide") == 1
    locked = '<e><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></e>'
    assert read(offices.epub({"META-INF/encryption.xml": locked}), "b.epub").code == (
        "office_encrypted"
    )
    fonts = '<e><EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/></e>'
    assert read(offices.epub({"META-INF/encryption.xml": fonts}), "c.epub").status == "read"


@needs_office
def test_a_word_file_is_read_in_order_with_insertions_and_controls() -> None:
    document = read(offices.docx(), "rules.docx")
    lines = [line for line in document.text.split("\n") if line]
    assert (document.kind, document.status) == ("docx", "read")
    assert lines == [
        "# Ferry rules",
        "Dogs travel free.",
        "- Bring a lead.",
        "a | b",
        "c | d",
        "Cats pay half",
        "In a control",
    ]
    # By its content, whatever its name.
    assert read(offices.docx(), "unnamed").kind == "docx"


@needs_office
def test_slides_and_sheets_are_parts_that_can_be_cited() -> None:
    show = read(offices.pptx(), "plan.pptx")
    assert [page.label for page in show.pages] == ["Plan", "Crew"]
    assert show.text.split("\n") == [
        "# Plan",
        "Sail at dawn",
        "# Crew",
        "Ada | cook",
        "[notes]",
        "Ask about the cook.",
    ]
    book = read(offices.xlsx(), "tides.xlsx")
    assert [page.label for page in book.pages] == ["Tides", "Notes (hidden)"]
    assert book.text.split("\n") == [
        "day | height | spring",
        "2024-05-09 | 4 | TRUE",
        "last | =SUM(B2:B2)",
        " |  | see harbour",
    ]


@pytest.mark.parametrize(
    ("data", "name", "code"),
    [
        (b"plain text", "a.docx", "office_damaged"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1locked", "a.docx", "not_supported"),
        (b"PK\x03\x04[Content_Types].xml word/", "a.docx", "office_damaged"),
        (offices.epub()[:300], "a.epub", "office_damaged"),
        (
            offices.zipped({"[Content_Types].xml": "", "xl/a.xml": b"<a>" + b"x" * (1 << 26)}),
            "bomb.xlsx",
            "office_bomb",
        ),
        (
            offices.zipped(
                {
                    "[Content_Types].xml": "",
                    "word/document.xml": '<!DOCTYPE a [<!ENTITY b "ha">]><a>&b;&b;</a>',
                }
            ),
            "laughs.docx",
            "office_bomb",
        ),
        (offices.zipped({"a.txt": "x"}), "a.zip", "archive"),
    ],
)
@needs_office
def test_hostile_and_damaged_files_are_named(data: bytes, name: str, code: str) -> None:
    document = read(data, name)
    assert (document.code, document.text) == (code, "")
    assert document.reason


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docx", None)
    monkeypatch.setattr("hipcli.documents.office_reader.find_spec", lambda name: None)
    document = read(offices.zipped({"[Content_Types].xml": "", "word/a.xml": ""}), "a.docx")
    assert (document.status, document.code) == ("skipped", "extra_missing")
    assert "hipcli[office]" in document.hint
    assert read(offices.epub(), "book.epub").status == "read"
