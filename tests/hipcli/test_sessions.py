"""`hip sessions`, and asking a saved session again."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hipcli.engine.errors import SessionError
from hipcli.engine.events import Evidence
from tests.hipcli.fakes import FIRST_CHARACTER, FakeEngine, run_hip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@dataclass
class Record:
    id: str
    name: str = ""
    created: str = "2026-01-02T03:04:05Z"
    used_s: float = 1767323045.5
    state: str = "complete"
    context_tokens: int = 12345
    tokens_done: int = 12345
    num_bytes: int = 1 << 20
    model: str = "smollm2"
    method: str = "hip"
    inputs: tuple[dict[str, str], ...] = ({"name": "book.txt", "sha256": "0" * 64},)
    extra: dict[str, Any] = field(default_factory=dict)
    kept_ratio: float = 1.0
    keep: float = 1.0
    branch: str = ""
    path: Path = Path("/cache/sessions/x")

    @property
    def complete(self) -> bool:
        return self.state == "complete"


class Store:
    """Two sessions, and what was removed."""

    root = Path("/cache/sessions")

    def __init__(self) -> None:
        self.records = [
            Record("aaaa11112222", "letters"),
            Record("bbbb33334444", state="partial", tokens_done=6144),
        ]
        self.removed: list[str] = []

    def list(self, *, unusable: bool = False) -> list[Record]:
        return self.records

    def put_aside(self) -> tuple[Record, ...]:
        return ()

    def total_bytes(self) -> int:
        return 3 << 20

    def find(self, wanted: str | None = None, *, unusable: bool = False) -> Record:
        for record in self.records:
            if wanted is None or wanted == record.name or record.id.startswith(wanted):
                return record
        raise SessionError(f"no session '{wanted}'", "see: hip sessions list")

    def remove(self, record: Record) -> None:
        self.removed.append(record.id)

    def context(self, record: Record) -> np.ndarray:
        return np.array(record.extra["ids"], dtype=np.int32)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr("hipcli.engine.sessions.SessionStore", lambda directory: made)
    return made


def test_sessions_list(store: Store) -> None:
    lines = run_hip("sessions", "list").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "USED", "TOKENS", "SIZE", "STATE", "INPUTS"]
    used = "2026-01-02T03:04:05Z"
    first = ["aaaa11112222", "letters", used, "12,345", "1.0", "MiB", "complete", "book.txt"]
    assert lines[1].split() == first
    assert lines[2].split()[-2] == "partial" and "  6,144 of 12,345  " in lines[2]
    rows = run_hip("sessions", "list", "--json").json["sessions"]
    assert [row["id"] for row in rows] == ["aaaa11112222", "bbbb33334444"]


def test_a_list_fits_its_terminal(store: Store) -> None:
    for width in (40, 80):
        shown = run_hip("sessions", "list", on_terminal=True, width=width).out
        assert max(map(len, shown.splitlines())) <= width
        assert "letters" in shown and "6,144 of 12,345" in shown and "book.txt" in shown


def test_no_sessions_is_no_error() -> None:
    outcome = run_hip("sessions", "list")
    assert (outcome.code, outcome.out) == (0, "")
    assert run_hip("sessions", "list", "--json").json["sessions"] == []


def test_sessions_show_and_path(store: Store) -> None:
    assert "context_tokens: 12,345\n" in run_hip("sessions", "show", "bbbb").out
    assert run_hip("sessions", "show", "--json").json["session"]["name"] == "letters"
    assert run_hip("sessions", "path", "letters").out == "/cache/sessions/x\n"
    assert run_hip("sessions", "path").out == "/cache/sessions\n"


def test_sessions_rm_removes_all_or_none(store: Store) -> None:
    assert run_hip("sessions", "rm", "letters", "nosuch").code == 1
    assert store.removed == []
    assert run_hip("sessions", "rm", "letters", "bbbb", "-q").err == ""
    assert store.removed == ["aaaa11112222", "bbbb33334444"]


def remember(record: Record, settings: dict[str, Any]) -> None:
    """Fills `record` with what `hip ask` keeps of a document named like the record."""
    name = record.name or record.id
    Path(name).write_text("A letter from Ada.\nTo Charles.\n")
    engine = FakeEngine()
    assert run_hip("ask", name, "Who?", "-q", engine=engine).code == 0
    request = engine.requests[0]
    kept = json.loads(json.dumps(request.extra))
    record.extra = kept | {"ids": request.context_ids.tolist(), "settings": settings}
    record.inputs = tuple({"name": n, "sha256": s} for n, s in request.digests)
    Path(name).unlink()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--resume", "Who?"], "letters"),
        (["-c", "Who?"], "letters"),
        (["Who?", "-c"], "letters"),
        (["Who?", "--resume"], "letters"),
        (["--resume", "--json", "Who?"], "letters"),
        (["-c", "--", "Who?"], "letters"),
        (["--resume", "letters", "Who?"], "letters"),
        (["--resume=bbbb", "Who?"], "bbbb33334444"),
        (["-c", "bbbb", "Who?"], "bbbb33334444"),
        (["Who?", "--resume", "bbbb"], "bbbb33334444"),
        (["-c", "bbbb", "-Q", "question.txt"], "bbbb33334444"),
        (["-c", "-Q", "question.txt"], "letters"),
    ],
)
def test_resume_takes_an_optional_session(words: list[str], name: str, store: Store) -> None:
    Path("question.txt").write_text("Who?")
    for record in store.records:
        remember(record, {"method": "window", "system": None, "window_tokens": 64})
    engine = FakeEngine()
    outcome = run_hip("ask", "--json", *words, engine=engine)
    assert outcome.code == 0, outcome.err
    assert [entry["path"] for entry in outcome.json["inputs"]] == [name]
    question = engine.tokenizer.decode(engine.requests[0].question_ids)
    assert "Who?" in question
    # A session goes on with the settings it was made with.
    assert engine.configs[0].method == "window"
    assert engine.configs[0].method_settings == {"window_tokens": 64}


def test_resume_lets_the_command_line_overrule_the_session(store: Store) -> None:
    remember(store.records[0], {"method": "window"})
    engine = FakeEngine()
    assert run_hip("ask", "-c", "Who?", "--method", "dense", engine=engine).code == 0
    assert engine.configs[0].method == "dense"


def test_other_settings_than_the_session_has_are_told(store: Store) -> None:
    remember(store.records[0], {"method": "hip", "budget_tokens": None, "system": None})
    Path("letters").write_text("A letter from Ada.\nTo Charles.\n")
    outcome = run_hip("ask", "-c", "Who?", "--method", "dense", "--json")
    assert outcome.code == 0
    (row,) = outcome.json["warnings"]
    assert row["code"] == "other_session" and "method hip -> dense" in row["message"]
    assert run_hip("ask", "-c", "Who?", "--method", "hip", "--json").json["warnings"] == []
    (row,) = run_hip("ask", "-c", "Who?", "--system", "Be brief.", "--json").json["warnings"]
    assert row["code"] == "system_kept"


def test_a_changed_file_is_named_and_read_again(store: Store) -> None:
    remember(store.records[0], {})
    Path("letters").write_text("A letter from Bob.\nTo Charles.\n")
    engine = FakeEngine()
    outcome = run_hip("ask", "-c", "Who?", "--json", engine=engine)
    assert outcome.code == 0
    (row,) = outcome.json["warnings"]
    assert row["code"] == "source_changed" and row["message"].startswith("letters changed")
    assert outcome.json["session"]["stale"] == []
    (request,) = engine.requests
    assert "from Bob" in engine.tokenizer.decode(request.context_ids)
    assert request.digests[0][0] == "letters" != request.digests[0][1]
    # The name goes with the text as it is now.
    assert request.cache.name == "letters"


def test_a_stale_session_marks_its_answer(store: Store) -> None:
    remember(store.records[0], {})
    Path("letters").write_text("A letter from Bob.\nTo Charles.\n")
    engine = FakeEngine()
    outcome = run_hip("ask", "-c", "Who?", "--json", "--stale-ok", engine=engine)
    (row,) = outcome.json["warnings"]
    assert row["code"] == "source_stale"
    assert outcome.json["session"]["stale"] == ["letters"]
    assert "from Ada" in engine.tokenizer.decode(engine.requests[0].context_ids)


def test_a_text_written_again_alike_is_not_stale(store: Store) -> None:
    remember(store.records[0], {})
    Path("letters").write_text("A letter from Ada.\nTo Charles.\n")
    outcome = run_hip("ask", "-c", "Who?", "--json")
    assert outcome.json["warnings"] == [] and outcome.json["session"]["stale"] == []


def test_a_file_that_is_gone_is_named(store: Store) -> None:
    remember(store.records[0], {})
    outcome = run_hip("ask", "-c", "Who?", "--json")
    assert outcome.code == 0
    (row,) = outcome.json["warnings"]
    assert row["code"] == "source_gone" and row["message"].startswith("letters")
    assert outcome.json["session"]["stale"] == []


def test_what_was_piped_in_cannot_be_read_again(store: Store) -> None:
    Path("notes").write_text("Notes.")
    engine = FakeEngine()
    assert run_hip("ask", "notes", "-", "Who?", "-q", stdin=b"Piped.", engine=engine).code == 0
    request = engine.requests[0]
    kept = json.loads(json.dumps(request.extra))
    store.records[0].extra = kept | {"ids": request.context_ids.tolist()}
    Path("notes").write_text("Other notes.")
    outcome = run_hip("ask", "-c", "Who?")
    assert outcome.code == 1 and "stdin is not there" in outcome.err
    assert run_hip("ask", "-c", "Who?", "--stale-ok").code == 0


def test_an_id_alone_is_no_question(store: Store) -> None:
    outcome = run_hip("ask", "-c", "bbbb3333")
    assert outcome.code == 2
    assert "'bbbb3333' is a session, the question is missing" in outcome.err


def test_a_resumed_session_cites_without_its_documents(store: Store) -> None:
    remember(store.records[0], {})
    ids = store.records[0].extra["ids"]
    start = ids.index(ord("T") + FIRST_CHARACTER, ids.index(ord("A") + FIRST_CHARACTER))
    evidence = (Evidence(start, start + len("To Charles."), -0.5),)
    outcome = run_hip("ask", "-c", "Who?", "--cite", engine=FakeEngine(evidence=evidence))
    # The line before the passage says the answer.
    assert outcome.out == "It was Ada.\n\n[1] letters, lines 1-2\n    1: A letter from Ada.\n"
    assert not Path("letters").exists()


def test_files_that_came_into_a_folder_are_named(store: Store) -> None:
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("A letter from Ada.\n")
    Path("notes/b.log").write_text("left out\n")
    engine = FakeEngine()
    assert run_hip("ask", "notes", "Who?", "-q", "--exclude", "*.log", engine=engine).code == 0
    request, record = engine.requests[0], store.records[0]
    kept = json.loads(json.dumps(request.extra))
    record.extra = kept | {"ids": request.context_ids.tolist()}
    record.inputs = tuple({"name": n, "sha256": s} for n, s in request.digests)
    assert run_hip("ask", "-c", "Who?", engine=engine).err.count("came into") == 0
    for name in ("c.txt", "d.log"):
        Path("notes", name).write_text("Another letter.\n")
    outcome = run_hip("ask", "-c", "Who?", "--json", engine=engine)
    assert outcome.code == 0
    (row,) = [row for row in outcome.json["warnings"] if row["code"] == "source_new"]
    assert "notes/c.txt" in row["message"] and "d.log" not in row["message"]


@pytest.mark.parametrize(
    ("words", "keep"),
    [([], None), (["--keep", "full"], 1.0), (["--keep", "0.25"], 0.25), (["--keep", "auto"], None)],
)
def test_keep_reaches_the_engine(words: list[str], keep: float | None) -> None:
    Path("a.txt").write_text("A letter from Ada.\n")
    engine = FakeEngine()
    assert run_hip("ask", "a.txt", "Who?", *words, engine=engine).code == 0
    assert engine.requests[0].cache.keep == keep


@pytest.mark.parametrize("keep", ["0", "1.5", "-1", "half", "nan"])
def test_keep_must_be_a_part(keep: str) -> None:
    Path("a.txt").write_text("A letter from Ada.\n")
    outcome = run_hip("ask", "a.txt", "Who?", f"--keep={keep}")
    assert outcome.code == 2 and "--keep" in outcome.err


def test_a_pruned_session_is_resumed_as_it_is(store: Store) -> None:
    remember(store.records[0], {"method": "window", "system": None})
    store.records[0].keep = 0.25
    engine = FakeEngine()
    assert run_hip("ask", "-c", "Who?", engine=engine).code == 0
    assert run_hip("ask", "-c", "Who?", "--keep", "full", engine=engine).code == 0
    assert [request.cache.keep for request in engine.requests] == [0.25, 1.0]


def test_rounds_reach_the_engine_and_none_is_for_attend() -> None:
    Path("a.txt").write_text("A letter from Ada.\n")
    engine = FakeEngine()
    for words in ([], ["--rounds", "2"], ["--rounds", "0", "--answer", "attend"]):
        assert run_hip("ask", "a.txt", "Who?", *words, engine=engine).code == 0
    assert [request.rounds for request in engine.requests] == [1, 2, 0]
    refused = run_hip("ask", "a.txt", "Who?", "--rounds", "0", engine=engine)
    assert refused.code == 2
    assert "--answer attend" in refused.err
