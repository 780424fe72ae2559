"""`hip ask --batch` with lines that name their own sources."""

import json
from pathlib import Path

import pytest

from hipcli.config.settings import Settings
from hipcli.runs.cluster.allotment import MOST_TRIES, Allotment
from hipcli.runs.cluster.worker import Worker
from hipcli.runs.jobs import Job, groups
from hipcli.terminal.console import Console
from hipcli.terminal.lanes import Lanes
from tests.hipcli.fakes import FakeEngine, installed, run_hip

JOBS = [
    {"question": "Who?", "sources": ["a.txt"]},
    {"question": "Where?", "sources": ["b.txt"]},
    {"question": "When?", "sources": ["a.txt"]},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        Path(f"{name}.txt").write_text(f"A letter {name} from Ada.\n")
    write(JOBS)


def write(jobs: list) -> None:
    Path("jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))


def results(outcome) -> list[tuple[int, list[str]]]:
    """(line, documents) of each answer, as they came."""
    return [
        (event["line"], [row["path"] for row in event["inputs"]])
        for event in outcome.events
        if event["event"] == "result"
    ]


def test_each_set_of_documents_is_read_once_and_answers_keep_their_order() -> None:
    engine = FakeEngine()
    outcome = run_hip("ask", "--batch", "jobs.jsonl", "--jsonl", engine=engine)
    assert outcome.code == 0
    assert results(outcome) == [(1, ["a.txt"]), (2, ["b.txt"]), (3, ["a.txt"])]
    # One model for all, and both questions about a.txt before the one about b.txt.
    assert len(engine.configs) == 1
    contexts = [engine.tokenizer.decode(request.context_ids) for request in engine.requests]
    assert ["letter a" in text for text in contexts] == [True, True, False]


def test_unordered_answers_come_as_they_are_found() -> None:
    outcome = run_hip("ask", "--batch", "jobs.jsonl", "--jsonl", "--unordered")
    assert [line for line, _ in results(outcome)] == [1, 3, 2]


def test_text_in_order() -> None:
    outcome = run_hip("ask", "--batch", "jobs.jsonl", "-q")
    assert outcome.out == ("> Who?\nIt was Ada.\n\n> Where?\nIt was Ada.\n\n> When?\nIt was Ada.\n")


def test_lines_without_sources_are_about_those_of_the_command() -> None:
    write([*JOBS, "What?"])
    outcome = run_hip("ask", "c.txt", "--batch", "jobs.jsonl", "--json")
    rows = outcome.json["answers"]
    assert [(row["line"], row["inputs"][0]["path"]) for row in rows] == [
        (1, "a.txt"), (2, "b.txt"), (3, "a.txt"), (4, "c.txt"),
    ]  # fmt: skip


def test_documents_that_are_not_there_are_no_matter_of_the_others() -> None:
    write([*JOBS, {"question": "Why?", "sources": ["nowhere.txt"], "id": 7}, JOBS[1]])
    outcome = run_hip("ask", "--batch", "jobs.jsonl", "--json")
    assert outcome.code == 3
    rows = outcome.json["answers"]
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
    assert (rows[3]["id"], rows[3]["error"]["code"]) == (7, "input_unusable")
    assert rows[4]["answer"] == "It was Ada."
    assert "error: line 4: nowhere.txt" in outcome.err


@pytest.mark.parametrize(
    ("job", "part"),
    [
        ({"question": "Who?", "sources": "a.txt"}, "the sources are no list of paths"),
        ({"question": "Who?", "sources": []}, "the sources are no list of paths"),
        ({"question": "Who?", "sources": ["a.txt", 3]}, "the source 3 is no path"),
        ({"question": "Who?", "sources": ["-"]}, "standard input"),
    ],
)
def test_sources_that_are_none(job: dict, part: str) -> None:
    write([job])
    outcome = run_hip("ask", "--batch", "jobs.jsonl")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"jobs.jsonl, line 1: {part}" in outcome.err or part in outcome.err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("a.txt --batch jobs.jsonl", "every line of --batch has its own sources"),
        ("--batch jobs.jsonl --resume abc", "has its own sources"),
        ("--batch jobs.jsonl --name novel", "--name is for one session"),
        ("--batch plain.jsonl --resume abc --cluster local", "a session is one"),
        (
            "--batch jobs.jsonl --gpus 2 --device cpu --cluster auto",
            "makes several GPUs one engine",
        ),
        ("--batch jobs.jsonl --gpus 2 --device cpu", "name several sets of documents"),
        ("a.txt Who? --cluster auto", "--cluster is about --batch"),
        ("a.txt Who? --unordered", "--unordered is about --batch"),
        ("a.txt Who? --workers 2", "--workers is about --batch"),
        ("--batch jobs.jsonl --workers 2", "--workers is about --cluster"),
        ("--batch jobs.jsonl --cluster local --workers -1", "--workers: -1 is too small"),
    ],
)
def test_what_does_not_go_together(words: str, part: str) -> None:
    Path("plain.jsonl").write_text('"Who?"\n')
    outcome = run_hip("ask", *words.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert part in outcome.err


def jobs_about(*sources: str) -> list[Job]:
    return [Job(line, None, "Who?", (name,)) for line, name in enumerate(sources, start=1)]


def test_a_worker_keeps_its_documents() -> None:
    allotment = Allotment(groups(jobs_about("a", "b", "a", "c")))
    done = {"x": [], "y": []}
    while not allotment.finished:
        for worker, lines in done.items():
            found = allotment.next_for(worker)
            if found is not None:
                lines.append(found[1].line)
                assert allotment.done(worker) == found[1]
    assert done == {"x": [1, 3], "y": [2, 4]}


def test_what_a_dead_worker_had_to_do_is_done_by_another() -> None:
    allotment = Allotment(groups(jobs_about("a", "b", "a", "a")))
    for line in (1, 3):
        found = allotment.next_for("x")
        assert found is not None and found[1].line == line
        if line == 1:
            allotment.done("x")
    assert allotment.died("x") is None
    # What was begun comes first, and what is answered is not asked again.
    lines = []
    for _ in range(3):
        found = allotment.next_for("y")
        assert found is not None
        lines.append(found[1].line)
        allotment.done("y")
    assert lines == [3, 4, 2]
    assert allotment.next_for("y") is None and allotment.finished


def test_a_job_that_kills_its_workers_is_given_up() -> None:
    allotment = Allotment(groups(jobs_about("a", "a")))
    for number in range(MOST_TRIES):
        found = allotment.next_for(str(number))
        assert found is not None and found[1].line == 1
        given_up = allotment.died(str(number))
    assert given_up is not None and given_up.line == 1
    found = allotment.next_for("last")
    assert found is not None and found[1].line == 2
    allotment.done("last")
    assert allotment.finished


class Written:
    """A sink that keeps what comes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def write_json(self, value) -> None:
        self.text += json.dumps(value)


def test_complete_outputs_are_told_though_earlier_ones_are_missing() -> None:
    sink = Written()
    lanes = Lanes(sink, 4, ordered=True, separator="|")
    for number, closed in ((2, True), (3, False), (0, False)):
        lanes.lane(number).write(str(number))
        if closed:
            lanes.close(number)
    assert sink.text == "0"
    lanes.finish()
    assert sink.text == "0|2"


def test_a_worker_opens_documents_once_and_tells_what_the_engine_told(tmp_path: Path) -> None:
    settings = Settings.from_keywords(Console(None, None, None), {})
    engine = FakeEngine(notices=("odd",))
    with installed(engine):
        worker = Worker(settings, str(tmp_path))
        for job in (Job(1, "x", "Who?", ("a.txt",)), Job(3, None, "When?", ("a.txt",))):
            found = worker.answer(("a.txt",), ["Who?", "When?"], job)
            assert (found.error, found.document["answer"]) == (None, "It was Ada.")
            assert (found.document["line"], found.document["id"]) == (job.line, job.id)
            assert found.document["warnings"][0]["message"] == "odd"
        missing = worker.answer(("none.txt",), ["Who?"], Job(4, None, "Who?", ("none.txt",)))
        elsewhere = Worker(settings, str(tmp_path / "nowhere"))
        nowhere = elsewhere.answer(("a.txt",), ["Who?"], Job(5, None, "Who?", ("a.txt",)))
    assert len(engine.configs) == 1 and len(engine.requests) == 2
    assert missing.document["error"]["code"] == "input_unusable"
    assert "a worker has no folder" in nowhere.document["error"]["message"]
