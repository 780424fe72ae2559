"""The samples are what samples/README.md says: reproducible, and their facts stand where stated."""

import ast
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pypdf
import pypdfium2
import pytest

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
# manual.pdf was made with this version of reportlab; others order its objects differently.
REPORTLAB_VERSION = "5.1.0"
FACTS = {
    document["path"]: document["facts"]
    for document in json.loads((SAMPLES / "facts.json").read_text(encoding="utf-8"))["documents"]
}


@pytest.fixture(scope="module")
def load():
    """Imports a script of samples/ the way the scripts import one another."""

    def load_script(name: str) -> ModuleType:
        return importlib.import_module(name)

    sys.path.insert(0, str(SAMPLES))
    yield load_script
    sys.path.remove(str(SAMPLES))


def page_texts(path: Path) -> list[str]:
    with pypdfium2.PdfDocument(path) as document:
        return [page.get_textpage().get_text_range() for page in document]


@pytest.fixture(scope="module")
def manual_pages() -> list[str]:
    return page_texts(SAMPLES / "manual.pdf")


def test_manual_comes_out_the_same(load, tmp_path, manual_pages):
    reportlab = pytest.importorskip("reportlab")
    made = tmp_path / "manual.pdf"
    load("make_manual").build(made)
    assert page_texts(made) == manual_pages
    if reportlab.__version__ == REPORTLAB_VERSION:
        assert made.read_bytes() == (SAMPLES / "manual.pdf").read_bytes()


def test_manual_has_roman_then_arabic_labels(manual_pages):
    labels = pypdf.PdfReader(SAMPLES / "manual.pdf").page_labels
    assert labels == ["i", "ii", "iii", "iv", *(str(n) for n in range(1, len(manual_pages) - 3))]
    # The label is also what is printed at the foot; the title page has none.
    assert [text.split()[-1] for text in manual_pages[1:]] == labels[1:]


def test_manual_contents_name_the_right_pages(manual_pages):
    labels = pypdf.PdfReader(SAMPLES / "manual.pdf").page_labels
    contents = manual_pages[2] + manual_pages[3]
    entries = re.findall(r"^(\d+\.\d+ [^\r\n]*?)\s+(\d+)\r?$", contents, re.MULTILINE)
    assert len(entries) > 40
    for title, label in entries:
        assert title in manual_pages[labels.index(label)]


@pytest.mark.parametrize("fact", FACTS["manual.pdf"], ids=lambda fact: fact["answer"])
def test_manual_facts_stand_on_their_pages(fact, manual_pages):
    labels = pypdf.PdfReader(SAMPLES / "manual.pdf").page_labels
    assert fact["answer"] in manual_pages[fact["page"] - 1]
    assert labels[fact["page"] - 1] == fact["page_label"]


@pytest.mark.parametrize("fact", FACTS["bookshop"], ids=lambda fact: fact["file"])
def test_bookshop_facts_stand_on_their_lines(fact):
    lines = (SAMPLES / "bookshop" / fact["file"]).read_text(encoding="utf-8").splitlines()
    assert fact["answer"] in lines[fact["line"] - 1]


def test_bookshop_compiles_and_passes_its_own_checks():
    for path in (SAMPLES / "bookshop").rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), str(path))
    command = [
        sys.executable,
        "-B",
        "-m",
        "unittest",
        "discover",
        "-s",
        "checks",
        "-p",
        "check_*.py",
    ]
    done = subprocess.run(command, cwd=SAMPLES / "bookshop", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Ran 21 tests" in done.stderr


def test_notebook_comes_out_the_same(load, tmp_path):
    load("make_notebook").build(tmp_path)
    for name in ("notebook.ipynb", "greenhouse_week.csv"):
        assert (tmp_path / name).read_bytes() == (SAMPLES / name).read_bytes()


def test_notebook_is_valid_and_has_its_facts():
    notebook = json.loads((SAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    for cell in cells:
        assert {"cell_type", "id", "metadata", "source"} <= set(cell)
        assert ("outputs" in cell) == ("execution_count" in cell) == (cell["cell_type"] == "code")
    assert len({cell["id"] for cell in cells}) == len(cells)
    for fact in FACTS["notebook.ipynb"]:
        assert fact["answer"] in json.dumps(cells[fact["cell"] - 1])


def write(script: ModuleType, num_words: int, seed: int, **settings) -> tuple[str, list]:
    out = io.StringIO()
    facts = script.write_book(out, num_words, seed, **settings)
    return out.getvalue(), facts


@pytest.mark.parametrize("style", ["prose", "noise"])
@pytest.mark.parametrize("num_words", [500, 6000, 20_000])
def test_book_has_its_length_and_its_facts(load, style, num_words):
    text, facts = write(load("make_book"), num_words, 7, style=style)
    assert abs(len(text.split()) - num_words) < 0.1 * num_words
    assert text.isascii()
    assert len(facts) == max(1, round(num_words / 2500))
    lines = text.split("\n")
    headings = [m.start() for m in re.finditer(r"^Chapter \d+\.", text, re.MULTILINE)]
    for number, fact in enumerate(facts):
        assert text[fact.char_start :].startswith(fact.sentence)
        assert fact.sentence in lines[fact.line - 1]
        assert fact.chapter == sum(start < fact.char_start for start in headings)
        assert text.count(fact.sentence) == 1
        assert fact.answer in fact.sentence
        assert fact.depth == pytest.approx(
            (number + 0.5) / len(facts), abs=max(0.02, 150 / num_words)
        )


def test_book_depends_on_nothing_but_its_seed(load, tmp_path):
    text, facts = write(load("make_book"), 3000, 11)
    assert write(load("make_book"), 3000, 11) == (text, facts)
    assert write(load("make_book"), 3000, 12)[0] != text
    command = [
        sys.executable, "-B", "make_book.py", "--words", "3000", "--seed", "11",
        "-o", str(tmp_path / "book.txt"), "--facts", str(tmp_path / "facts.json"),
    ]  # fmt: skip
    # A child process has other string hashes.
    subprocess.run(command, cwd=SAMPLES, check=True)
    assert (tmp_path / "book.txt").read_bytes() == text.encode()
    stored = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))["facts"]
    assert [fact["char_start"] for fact in stored] == [fact.char_start for fact in facts]


def test_book_seldom_repeats_a_sentence_and_tells_no_other_numbers(load):
    text, facts = write(load("make_book"), 30_000, 5)
    sentences = re.split(r"(?<=[.!?\"]) (?=[A-Z\"])|\n+", text)
    assert len(set(sentences)) > 0.97 * len(sentences)
    for fact in facts:
        text = text.replace(fact.sentence, "")
    assert not re.search(r"\d", re.sub(r"^Chapter \d+\.", "", text, flags=re.MULTILINE))
    assert not re.search(r"[{}~_]|\b[Aa] [aeiou]|\b[Aa]n [^aeiouAEIOU]|\b[Tt]he the\b", text)


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_passkey_stands_at_its_depth(load, depth):
    script = load("make_book")
    plants = [script.passkey_plant("48213", depth)]
    text, (fact,) = write(script, 5000, 3, style="noise", plants=plants)
    assert fact.depth == pytest.approx(depth, abs=0.02)
    assert text.count(fact.sentence) == 1

    plain, _facts = write(script, 5000, 3, plants=[])
    planted, char_start = script.plant_passkey(plain, "48213", depth)
    assert planted[char_start:].startswith(fact.sentence)
    assert char_start / len(planted) == pytest.approx(depth, abs=0.02)
    assert planted.replace(f"{fact.sentence} ", "") == plain


def test_book_refuses_what_it_cannot_write(load):
    with pytest.raises(ValueError, match="num_words 0"):
        write(load("make_book"), 0, 1)
    with pytest.raises(ValueError, match="style 'verse'"):
        write(load("make_book"), 10, 1, style="verse")
