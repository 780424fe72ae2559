"""`hip eval` on a tiny model: tables, JSON, results that are kept, pages of HTML."""

import html.parser
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from hipcli.engine.evaluation.running import Evaluation
from hipcli.engine.evaluation.summary import Grid
from hipcli.terminal.heat_map import rgb
from hipcli.terminal.heat_picture import png
from tests.engine.evaluation.tiny import model_folder
from tests.hipcli.fakes import Outcome, run_hip

# What sets a colour, of the text or behind it; bold is none.
COLOUR = re.compile(r"\x1b\[(?:[349]|10)\d")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("eval") / "tiny"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALL = ("--lengths", "1k", "--method", "bm25", "--device", "cpu")


def hip_eval(model: str, *words: str) -> Outcome:
    return run_hip("eval", "--model", model, *SMALL, *words)


def test_tables_of_text(model: str) -> None:
    outcome = hip_eval(model, "--depths", "0.1,0.9", "--haystacks", "noise,code")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split()[:6] == ["METHOD", "ANSWER", "TASK", "HAYSTACK", "LENGTH", "ASKED"]
    assert lines[1].split()[:6] == ["bm25", "reread", "passkey", "noise", "1K", "2"]
    assert lines[1].split()[7:10] == ["1.000", "1.000", "1.000"]
    assert "bm25 reread: passkey in code" in lines
    grid = lines[lines.index("bm25 reread: passkey in code") + 1 :]
    assert [line.split()[:2] for line in grid] == [["depth", "1K"], ["10", "%"], ["90", "%"]]
    assert "\x1b" not in outcome.out + outcome.err


@pytest.mark.parametrize("width", [20, 80])
def test_colours_on_a_terminal_are_on_stderr(
    model: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hipcli.terminal.console.Console.stderr_is_terminal", True)
    words = ("eval", "--model", model, *SMALL, "-q")
    outcome = run_hip(*words, on_terminal=True, width=width)
    assert outcome.code == 0, outcome.err
    assert "passkey in prose" not in outcome.out and "passkey in prose" in outcome.err
    assert "\x1b[" not in outcome.out and COLOUR.search(outcome.err)
    plain = run_hip(*words, "--no-color", on_terminal=True, width=width)
    assert "\x1b[" not in plain.out and not COLOUR.search(plain.err)


def test_json_and_events(model: str) -> None:
    document = hip_eval(model, "--depths", "0.5", "--json").json
    assert document["schema_version"] == 1
    (cell,) = document["cells"]
    assert cell["task"] == "passkey" and cell["length"] == 1024 and cell["depth"] == 0.5
    (line,) = document["lines"]
    assert line["means"]["recall_1"] == cell["recall_1"] == 1.0
    events = hip_eval(model, "--depths", "0.5", "--jsonl").events
    assert [event["event"] for event in events] == ["start", "cell", "result"]
    timed = ("prefill_s", "answer_s", "questions", "event")
    same = [{k: v for k, v in e.items() if k not in timed} for e in (events[1], cell)]
    assert same[0] == same[1]


def test_finished_cells_are_not_asked_again(model: str) -> None:
    out = ("--out", "results.jsonl")
    hip_eval(model, "--depths", "0.5", *out)
    first = Path("results.jsonl").read_text()
    outcome = hip_eval(model, "--depths", "0.5,0.9", *out, "--limit-s", "600")
    second = Path("results.jsonl").read_text()
    assert second.startswith(first)
    assert [json.loads(line)["depth"] for line in second.splitlines()] == [0.5, 0.9]
    assert outcome.out.splitlines()[1].split()[5] == "2"
    outcome = hip_eval(model, "--depths", "0.1,0.5", *out, "--limit-s", "0")
    assert "out of time" in outcome.err and outcome.out.splitlines()[1].split()[5] == "1"
    assert Path("results.jsonl").read_text() == second


def test_an_interruption_shows_and_keeps_what_is_finished(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Evaluation.rows

    def interrupted(self: Evaluation, done: set[str]) -> Iterator[list[dict]]:
        yield next(rows(self, done))
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluation, "rows", interrupted)
    outcome = hip_eval(model, "--out", "results.jsonl")
    assert outcome.code == 130 and "Interrupted" in outcome.err
    assert outcome.out.splitlines()[1].startswith("bm25")
    assert len(Path("results.jsonl").read_text().splitlines()) == 1


class Tags(html.parser.HTMLParser):
    """Which elements a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}


def test_a_page_of_html_needs_nothing_else(model: str) -> None:
    assert hip_eval(model, "--depths", "0.1,0.5", "--html", "map.html").code == 0
    text = Path("map.html").read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.seen.count("table") == 2 and "script" not in tags.seen
    assert "passkey in prose" in text and "background: rgb(" in text


def test_a_picture_of_the_heat_maps(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = hip_eval(model, "--depths", "0.1,0.5", "--png", "map.png")
    assert outcome.code == 0, outcome.err
    with Image.open("map.png") as picture:
        assert picture.format == "PNG"
        colours = {colour for _, colour in picture.getcolors(1 << 20)}
    # A model of random weights says nothing right.
    assert rgb(0.0) in colours and rgb(1.0) not in colours
    monkeypatch.setitem(sys.modules, "PIL", None)
    outcome = hip_eval(model, "--png", "other.png")
    assert outcome.code == 2 and "pip install 'hipcli[png]'" in outcome.err
    assert not Path("other.png").exists()


def test_cells_of_a_picture_have_the_colours_of_their_scores() -> None:
    values = {(0.1, 1024): 0.0, (0.9, 1024): 1.0, (0.9, 2048): 0.5}
    grid = Grid("hip auto: passkey in prose", (0.1, 0.9), (1024, 2048), values)
    picture = Image.open(io.BytesIO(png({"id": "tiny", "revision": None}, [grid])))
    first_row = 32 + 44 * 4 + 4
    found = [
        [picture.getpixel((32 + 120 * column + 4, first_row + 44 * row)) for column in (1, 2)]
        for row in (0, 1)
    ]
    assert found == [[rgb(0.0), (255, 255, 255)], [rgb(1.0), rgb(0.5)]]


def test_own_files_are_a_haystack(model: str) -> None:
    source = Path("project")
    source.mkdir()
    body = "".join(f"def step_{n}(x):\n    return x + {n}\n\n\n" for n in range(200))
    (source / "steps.py").write_text(body)
    outcome = hip_eval(model, "--haystack-files", "project", "--depths", "0.5", "--json")
    (cell,) = outcome.json["cells"]
    assert cell["haystack"] == "files" and cell["haystack_digest"].startswith("files ")
    assert hip_eval(model, "--haystack-files", "nosuch").code == 3
    assert hip_eval(model, "--haystacks", "files").code == 2


def test_fidelity(model: str) -> None:
    Path("book.txt").write_text("Nobody spoke a word, and the ferry came in. " * 150)
    words = ("--fidelity", "book.txt", "--method", "window,dense", "--lengths", "1k")
    words += ("--window-tokens", "256", "--sink-tokens", "64", "--dtype", "float32")
    outcome = run_hip("eval", "--model", model, "--device", "cpu", *words)
    assert outcome.code == 0, outcome.err
    rows = [re.split(r"  +", line.strip()) for line in outcome.out.splitlines()]
    assert rows[0] == ["METHOD", "TOKENS", "PPL", "PPL RATIO", "KL", "TOP 1", "MASS", "TOP KEYS"]
    assert rows[1][:2] == ["window, all", "1,023"] and rows[2][0] == "window, sparse"
    assert rows[3][:2] == ["window, answering", "127"]
    assert rows[4][:2] == ["dense, all", "1,023"] and rows[4][3:6] == ["1.0000", "0.0000", "1.0000"]
    assert len([row for row in rows if row[0].isdigit()]) == 2
    document = run_hip("eval", "--model", model, "--device", "cpu", *words, "--json").json
    assert [report["method"] for report in document["fidelity"]] == ["window", "dense"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "nosuch"), "unknown task 'nosuch'"),
        (("--lengths", "long"), "'long' is no length"),
        (("--depths", "deep"), "'deep' is no number"),
        (("--method", "nosuch"), "unknown method 'nosuch'"),
        (("--answer", "guess"), "unknown answer mode 'guess'"),
        (("--tasks", ","), "--tasks names nothing"),
        (("--fidelity", "book.txt", "--method", "bm25"), "none is named"),
        (("--html", "nowhere/map.html"), "given to --html"),
        (("--html", "."), "given to --html"),
        (("--png", "nowhere/map.png"), "given to --png"),
    ],
)
def test_usage_errors(model: str, words: tuple[str, ...], message: str) -> None:
    Path("book.txt").write_text("Some words.\n")
    outcome = hip_eval(model, "--out", "results.jsonl", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    # Before anything was asked, and nothing is left behind.
    assert os.listdir() == ["book.txt"]


def test_what_fits_nowhere_is_an_error(model: str) -> None:
    outcome = hip_eval(model, "--method", "dense", "--lengths", "8k", "--depths", "0.5")
    assert (outcome.code, outcome.out) == (4, "")
    assert "4096 tokens" in outcome.err
    outcome = hip_eval(model, "--method", "dense,bm25", "--lengths", "8k", "--depths", "0.5")
    assert outcome.code == 0 and "does not fit" in outcome.out
    assert hip_eval(model, "--out", "nowhere/results.jsonl").code == 1


def test_list_needs_no_model() -> None:
    outcome = run_hip("eval", "--list")
    assert outcome.code == 0
    kinds = {line.split()[0] for line in outcome.out.splitlines()[1:]}
    assert kinds == {"task", "haystack", "baseline"}
    assert run_hip("eval", "--list", "--json").json["task"]["passkey"]


def test_nothing_is_left_in_the_cache(model: str, tmp_path: Path) -> None:
    hip_eval(model, "--depths", "0.5", "--method", "hip")
    cache = Path(os.environ["HIP_CACHE_DIR"])
    assert not [path for path in cache.rglob("*") if path.is_file()]
