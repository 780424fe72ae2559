"""`hip summarize` with an engine that says what it was asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hipcli.engine.events import Event, Result, SessionInfo
from hipcli.summary import wording
from hipcli.summary.kept import KeptParts, digest
from tests.hipcli.fakes import FakeEngine, run_hip

BOOK = "# Title\n\nSome words of welcome that are no heading.\n\n" + "".join(
    f"## Part {name}\n\nThe {name} ferry came in late and nobody spoke.\n\n"
    for name in ("one", "two", "three")
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.md").write_text(BOOK)
    Path("run.py").write_text("import sys\n\nif __name__ == '__main__':\n    sys.exit(0)\n")
    Path("Makefile").write_text("NAME := x\ntest: run.py\n\tpython run.py\n")


def questions(engine: FakeEngine) -> list[str]:
    decode = engine.tokenizer.decode
    return [
        decode(request.question_ids).split("\n")[0].removeprefix("Question: ")
        for request in engine.requests
    ]


def test_every_section_is_asked_about_within_its_own_tokens() -> None:
    engine = FakeEngine(("It was late.",))
    outcome = run_hip("summarize", "book.md", "-q", engine=engine)
    assert outcome.code == 0, outcome.err
    for name in ("Title", "Part one", "Part two", "Part three"):
        assert f"- **{name}** (lines " in outcome.out
    assert outcome.out.startswith("It was late.\n\n## Parts\n\n")
    assert len(engine.configs) == 1
    reading, *parts, last = engine.requests
    assert reading.generation.max_new_tokens == 1
    context = engine.tokenizer.decode
    for request, name in zip(parts, ("Title", "Part one", "Part two", "Part three"), strict=True):
        start, end = request.focus
        text = context(request.context_ids[start:end]).lstrip()
        assert text.startswith("#") and name in text.split("\n")[0]
        assert text.count("\n#") == 0
    assert last.cache.directory is None
    assert "Part three: It was late." in context(last.context_ids)


def test_json_covers_the_last_page_as_the_first() -> None:
    document = run_hip("summarize", "book.md", "run.py", "--json").json
    assert document["coverage"]["fraction"] == 1.0
    assert document["coverage"]["deciles"] == [1.0] * 10
    assert document["coverage"]["per_input"] == [
        {"path": "book.md", "fraction": 1.0}, {"path": "run.py", "fraction": 1.0},
    ]  # fmt: skip
    assert [part["title"] for part in document["parts"]][-1] == "run.py"
    assert document["parts"][1]["line_start"] == 5
    assert [row["path"] for row in document["files"]] == ["book.md", "run.py"]
    assert document["usage"]["generated_tokens"] > 0


@pytest.mark.parametrize("mode", ["head", "tail", "middle"])
def test_what_was_left_out_is_not_covered(mode: str) -> None:
    probe = FakeEngine()
    run_hip("ask", "book.md", "Who?", engine=probe)
    limit = len(probe.requests[0].context_ids) + 512 + 512 - 60
    words = ["summarize", "book.md", "--json", "--context-limit", str(limit)]
    assert run_hip(*words).code == 4
    coverage = run_hip(*words, "--fit", mode).json["coverage"]
    assert 0.5 < coverage["fraction"] < 0.8
    assert (coverage["deciles"][0] == 1.0) == (mode != "tail")
    assert (coverage["deciles"][-1] == 1.0) == (mode != "head")
    assert (min(coverage["deciles"][4:6]) < 1.0) == (mode == "middle")
    assert coverage["per_input"][0]["fraction"] == pytest.approx(coverage["fraction"])


@pytest.mark.parametrize(
    ("per", "shown", "hidden"),
    [
        ("none", [], ["## ", "Part one"]),
        ("file", ["## book.md\n\nIt was Ada.\n\nParts: Title; Part one"], ["- **"]),
        ("chapter", ["## book.md\n\n- **Title**", "## run.py\n\nIt was Ada."], ["Parts:"]),
    ],
)
def test_per(per: str, shown: list[str], hidden: list[str]) -> None:
    out = run_hip("summarize", "book.md", "run.py", "--per", per).out
    assert out.endswith("\n") and not out.endswith("\n\n")
    for part in shown:
        assert part in out
    for part in hidden:
        assert part not in out


def test_words_and_focus_reach_the_model() -> None:
    engine = FakeEngine()
    run_hip("summarize", "book.md", "--words", "1000", "--focus", "ferries", engine=engine)
    asked = questions(engine)[1:]
    assert all("ferries" in question for question in asked)
    assert "in 120 words" in asked[0] and "in 400 words" in asked[-1]
    assert engine.requests[1].generation.max_new_tokens == wording.max_tokens(120)


def test_a_repository_names_how_it_is_run() -> None:
    outcome = run_hip("summarize", "book.md", "run.py", "Makefile")
    assert "## How it is run\n\n- python run.py  (run.py)\n- make test  (Makefile)" in outcome.out
    rows = run_hip("summarize", "run.py", "Makefile", "--json").json["entry_points"]
    assert {"command": "make test", "path": "Makefile"} in rows


def test_a_model_that_says_nothing_leaves_no_section_out() -> None:
    document = run_hip("summarize", "book.md", "--json", engine=FakeEngine(())).json
    assert document["parts"][1]["summary"].startswith("It begins: ## Part one")
    assert document["coverage"]["fraction"] == 0.0


class Keeping(FakeEngine):
    """Saves its session, as a real engine does, as far as keeping parts needs it."""

    def ask(self, request: Any) -> Iterator[Event]:
        for event in super().ask(request):
            if isinstance(event, Result) and request.cache.directory is not None:
                session = SessionInfo(id="0123abcd", complete=True)
                self.folder = request.cache.directory / "sessions" / "x"
                self.folder.mkdir(parents=True, exist_ok=True)
                event = Result(**{**fields(event), "session": session})
            yield event


def fields(result: Result) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__dataclass_fields__}


def test_an_interrupted_summary_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = type("Record", (), {"path": tmp_path / "hip-cache" / "sessions" / "x"})
    monkeypatch.setattr("hipcli.engine.sessions.SessionStore.find", lambda self, key: record)
    done: list[int] = []

    def interrupt() -> None:
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt

    first = Keeping(("It was late.",), on_piece=interrupt)
    outcome = run_hip("summarize", "book.md", "-q", engine=first)
    assert (outcome.code, outcome.out) == (130, "")
    assert len(json.loads((record.path / "summary.json").read_text())["parts"]) == 2
    second = Keeping(("It was late.",))
    assert run_hip("summarize", "book.md", "-q", engine=second).code == 0
    # The reading question, the two sections that were missing, the synthesis.
    assert len(second.requests) == 4
    third = Keeping(("It was late.",))
    run_hip("summarize", "book.md", "-q", engine=third)
    assert len(third.requests) == 1
    run_hip("summarize", "book.md", "-q", "--refresh", engine=third)
    assert len(third.requests) == 7


def test_kept_parts_survive_damage(tmp_path: Path) -> None:
    key = digest("Who?", {"focus": [1, 2]})
    KeptParts(tmp_path).put(key, {"text": "Ada"})
    assert KeptParts(tmp_path).get(key) == {"text": "Ada"}
    for damage in ("", "{", "[]", '{"parts": 3}', '{"parts": {"a": 3}}'):
        (tmp_path / "summary.json").write_text(damage)
        assert KeptParts(tmp_path).get(key) is None


@pytest.mark.parametrize(
    ("answer", "ended", "expected"),
    [
        ("One. Two. One. Two. One.", True, "One. Two."),
        ("One.\nTwo and", False, "One."),
        ("No end at all", False, "No end at all"),
        ("", True, ""),
    ],
)
def test_whole_sentences(answer: str, ended: bool, expected: str) -> None:
    assert wording.whole_sentences(answer, ended) == expected


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ("", 2, "no SOURCE given"),
        ("nowhere.md", 3, "nowhere.md"),
        ("book.md --per page", 2, "file, chapter, none"),
        ("book.md --per chapters", 2, "did you mean 'chapter'?"),
        ("book.md --words 3", 2, "--words"),
        ("book.md --cite", 2, "--cite"),
        ("book.md --method hpi", 2, "did you mean 'hip'?"),
        ("--resume abc", 1, "session"),
        ("--resume abc book.md", 2, "reads nothing anew"),
    ],
)
def test_failures(words: str, code: int, part: str) -> None:
    outcome = run_hip("summarize", *words.split())
    assert (outcome.code, outcome.out) == (code, "")
    assert part in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: ")


def test_an_answer_that_repeats_the_question_loses_it() -> None:
    asked = wording.of_section("a.py", "a.py", "code", 15, "")
    answer = f"It adds. Question: {asked} Answer: It adds numbers."
    assert wording.whole_sentences(answer, True, asked) == "It adds. It adds numbers."


def test_a_synthesis_that_says_nothing_is_replaced() -> None:
    engine = FakeEngine(pieces=("1.",))
    answer = run_hip("summarize", "book.md", "run.py", engine=engine).out
    assert answer.startswith("It consists of: book.md; run.py. It is run with: python run.py")


def test_a_package_is_run_by_its_name() -> None:
    Path("lib/shop").mkdir(parents=True)
    Path("lib/shop/__main__.py").write_text("print(1)\n")
    rows = run_hip("summarize", "lib", "--json").json["entry_points"]
    assert [row["command"] for row in rows] == ["python -m shop, in lib"]
