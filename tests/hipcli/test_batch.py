"""`hip ask --batch`: many questions, one reading."""

import json
from pathlib import Path

import pytest

from hipcli.engine.errors import DoesNotFitError
from tests.hipcli.fakes import FakeEngine, run_hip

QUESTIONS = (
    b'{"question": "Who?", "id": "a", "expected": "Ada"}\n\n"Where?"\r\n{"question": "When?"}'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("A letter from Ada.\n")
    Path("q.jsonl").write_bytes(QUESTIONS)


def asked(engine: FakeEngine) -> list[str]:
    return [
        engine.tokenizer.decode(request.question_ids).split("\n")[0].removeprefix("Question: ")
        for request in engine.requests
    ]


def test_text_repeats_each_question() -> None:
    engine = FakeEngine(("It was ", "Ada.\n"))
    outcome = run_hip("ask", "book.txt", "--batch", "q.jsonl", "-q", engine=engine)
    assert outcome.err == ""
    blocks = outcome.out.split("\n\n")
    assert blocks == ["> Who?\nIt was Ada.", "> Where?\nIt was Ada.", "> When?\nIt was Ada.\n"]
    assert asked(engine) == ["Who?", "Where?", "When?"]


def test_documents_are_read_once_and_refreshed_once() -> None:
    engine = FakeEngine()
    assert run_hip("ask", "book.txt", "--batch", "q.jsonl", "--refresh", engine=engine).code == 0
    assert len(engine.configs) == 1
    assert [request.cache.refresh for request in engine.requests] == [True, False, False]


def test_without_a_cache_the_context_is_kept_meanwhile(tmp_path: Path) -> None:
    engine = FakeEngine()
    assert run_hip("ask", "book.txt", "--batch", "q.jsonl", "--no-cache", engine=engine).code == 0
    directories = {request.cache.directory for request in engine.requests}
    assert len(directories) == 1
    directory = directories.pop()
    assert directory is not None and not directory.exists()
    assert not directory.is_relative_to(tmp_path / "hip-cache")


def test_json_is_one_document() -> None:
    document = run_hip("ask", "book.txt", "--batch", "q.jsonl", "--json").json
    rows = [(row["line"], row["id"], row["question"]) for row in document["answers"]]
    assert rows == [(1, "a", "Who?"), (3, None, "Where?"), (4, None, "When?")]
    assert document["answers"][0]["answer"] == "It was Ada."
    assert list(document) == ["schema_version", "answers", "warnings"]


def test_jsonl_has_a_result_for_each() -> None:
    outcome = run_hip("ask", "book.txt", "--batch", "-", "--jsonl", stdin=QUESTIONS)
    events = outcome.events
    assert events[0]["event"] == "start"
    results = [event for event in events if event["event"] == "result"]
    assert [(row["line"], row["id"]) for row in results] == [(1, "a"), (3, None), (4, None)]
    assert events[-1] == results[-1]
    assert all("line" in event for event in events if event["event"] == "token")


def test_one_that_does_not_fit_leaves_the_others() -> None:
    long = json.dumps("word " * 200).encode()
    content = b'"Who?"\n' + long + b'\n"When?"'

    class Narrow(FakeEngine):
        def ask(self, request):
            if len(request.question_ids) > 500:
                raise DoesNotFitError("too long", "ask less")
            return super().ask(request)

    words = ["ask", "book.txt", "--batch", "-"]
    outcome = run_hip(*words, "--jsonl", stdin=content, engine=Narrow())
    kinds = [(row["event"], row["line"]) for row in outcome.events if row["event"] != "start"]
    assert outcome.code == 4
    assert [row for row in kinds if row[0] in ("result", "error")] == [
        ("result", 1), ("error", 2), ("result", 3),
    ]  # fmt: skip
    document = run_hip(*words, "--json", stdin=content, engine=Narrow()).json
    assert document["answers"][1]["error"]["code"] == "does_not_fit"
    assert document["answers"][2]["answer"] == "It was Ada."


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b'"Who?"\n{"question": 3}', "line 2: the question is empty or no string"),
        (b'"Who?"\n\n{"text": "Where?"}', 'line 3: no "question"'),
        (b'{"question": " "}', "line 1: the question is empty"),
        (b"[1]", 'line 1: no "question"'),
        (b'"Who?"\nWhere?', "line 2: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'"Who?"\n"caf\xe9"', "line 2: not UTF-8"),
        (b'{"question": "Who?", "id": [1]}', "line 1: the id is [1]"),
    ],
)
def test_a_bad_line_is_told_before_any_work(content: bytes, part: str) -> None:
    engine = FakeEngine()
    Path("bad.jsonl").write_bytes(content)
    outcome = run_hip("ask", "book.txt", "--batch", "bad.jsonl", engine=engine)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"bad.jsonl, {part}" in outcome.err
    assert outcome.err.count("\n") == 1
    assert engine.configs == []


@pytest.mark.parametrize(
    ("words", "stdin", "code", "part"),
    [
        ("book.txt --batch nowhere.jsonl", None, 2, "--batch"),
        ("book.txt --batch -", b"\n\n", 3, "no questions"),
        ("- --batch -", b"", 2, "both want standard input"),
        ("book.txt --batch q.jsonl -Q q.jsonl", None, 2, "exclude one another"),
        ("--batch q.jsonl", None, 2, "no SOURCE given"),
        ("--resume abc book.txt --batch q.jsonl", None, 2, "reads nothing anew"),
        ("--resume abc --batch q.jsonl", None, 1, "session"),
    ],
)
def test_failures(words: str, stdin: bytes | None, code: int, part: str) -> None:
    outcome = run_hip("ask", *words.split(), stdin=stdin)
    assert (outcome.code, outcome.out) == (code, "")
    assert part in outcome.err
