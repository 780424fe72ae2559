"""`hip ask`: answers, JSON, events, files, stdin, sessions to come."""

import io
import os
from pathlib import Path

import pytest

from hipcli.engine.errors import DoesNotFitError, HipError, NotCachedError
from hipcli.engine.events import Evidence
from tests.hipcli.fakes import FIRST_CHARACTER, FakeEngine, Outcome, run_hip

QUESTION = "Who wrote the letter?"


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of ten lines in the current folder, by name."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("".join(f"This is line {n}.\n" for n in range(1, 11)))
    return "book.txt"


def test_answer_alone_on_stdout(book: str) -> None:
    outcome = run_hip("ask", book, QUESTION)
    assert (outcome.code, outcome.out) == (0, "It was Ada.\n")
    assert "reading 1 source" in outcome.err


@pytest.mark.parametrize("pieces", [("a\n", "\n", "b\n\n"), ("a", "\n\nb"), ("a\n\nb",)])
def test_exactly_one_newline_at_the_end(book: str, pieces: tuple[str, ...]) -> None:
    assert run_hip("ask", book, QUESTION, engine=FakeEngine(pieces)).out == "a\n\nb\n"


def test_an_empty_answer_is_a_newline(book: str) -> None:
    assert run_hip("ask", book, QUESTION, engine=FakeEngine(())).out == "\n"


def test_quiet_says_nothing_else(book: str) -> None:
    outcome = run_hip("ask", book, QUESTION, "-q", engine=FakeEngine(notices=("careful",)))
    assert (outcome.out, outcome.err) == ("It was Ada.\n", "")


HURTFUL = "[/INST] [bold]x[/bold] [\\] [red] :smile: " + "long " * 1000 + "終 😀 \x1b[31mred\x07"


def test_an_answer_is_never_markup_nor_wrapped(book: str) -> None:
    assert run_hip("ask", book, QUESTION, engine=FakeEngine((HURTFUL,))).out == HURTFUL + "\n"


def test_control_characters_are_spelled_out_on_a_terminal(book: str) -> None:
    outcome = run_hip("ask", book, QUESTION, engine=FakeEngine((HURTFUL,)), on_terminal=True)
    shown = HURTFUL.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert outcome.out == shown + "\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_a_terminal_without_the_characters_still_gets_the_answer(book: str, encoding: str) -> None:
    outcome = run_hip("ask", book, QUESTION, engine=FakeEngine(("終 é",)), encoding=encoding)
    expected = "終 é".encode(encoding, "backslashreplace").decode(encoding)
    assert (outcome.code, outcome.out) == (0, expected + "\n")


def test_json_is_one_utf8_document_with_every_field(book: str) -> None:
    engine = FakeEngine(("終",), notices=("careful",), noise="a library's greeting\n")
    document = run_hip("ask", book, QUESTION, "--json", engine=engine).json
    assert document["answer"] == "終"
    assert document["finish_reason"] == "stop"
    machine = ["dtype", "weights", "kv_dtype", "device", "heads"]
    assert list(document["model"]) == ["id", "revision", "format", *machine]
    assert document["method"]["name"] == "hip"
    assert document["usage"] == {
        "document_tokens": 161,
        "question_tokens": len(engine.requests[0].question_ids),
        "cached_tokens": 0,
        "prefilled_tokens": len(engine.requests[0].context_ids),
        "generated_tokens": 1,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "truncated": 0,
    }
    for name in ("ingest", "tokenize", "load", "prefill", "first_token", "decode", "total"):
        assert document["timings"][f"{name}_s"] >= 0
    for name in ("kv_device", "kv_host", "kv_disk", "peak_rss", "peak_device"):
        assert document["memory"][f"{name}_bytes"] >= 0
    assert (document["citations"], document["evidence"]) == ([], [])
    entry = document["inputs"][0]
    assert (entry["path"], entry["bytes"], entry["tokens"]) == (book, 161, 161)
    for name in ("type", "sha256", "pages", "encoding", "status", "reason"):
        assert name in entry
    assert list(document["session"]) == [
        "id", "name", "created", "reused", "complete", "kept_ratio", "stale", "turns",
    ]  # fmt: skip
    assert document["warnings"] == [{"code": "test", "message": "careful", "path": ""}]


def test_guessed_tokens_are_told(book: str) -> None:
    engine = FakeEngine(guessed=(1200, 900))
    usage = run_hip("ask", book, QUESTION, "--json", engine=engine).json["usage"]
    assert (usage["drafted_tokens"], usage["accepted_tokens"]) == (1200, 900)
    told = run_hip("ask", book, QUESTION, "-v", "--draft-tokens", "15", engine=engine)
    assert "900 of 1,200 tokens guessed from the passages were right" in told.err
    assert engine.requests[-1].generation.draft_tokens == 15
    refused = run_hip("ask", book, QUESTION, "--draft-tokens", "16", engine=engine)
    assert refused.code == 2 and "from 0 to 15" in refused.err


def test_jsonl_ends_with_the_result(book: str) -> None:
    engine = FakeEngine(notices=("careful",))
    outcome = run_hip("ask", book, QUESTION, "--jsonl", "-vv", engine=engine)
    events = outcome.events
    assert [event["event"] for event in events] == [
        "start", "progress", "progress", "warning", "token", "token", "result",
    ]  # fmt: skip
    # Infinity is no JSON: a speed nobody could measure is null.
    assert events[2]["tokens_per_s"] is None
    assert events[-1]["answer"] == "It was Ada."


def test_json_goes_to_a_file_whole(book: str, tmp_path: Path) -> None:
    outcome = run_hip("ask", book, QUESTION, "-o", "out.txt", engine=FakeEngine(("終\n",)))
    assert (outcome.code, outcome.out) == (0, "")
    assert Path("out.txt").read_bytes() == "終\n".encode()
    assert sorted(os.listdir(tmp_path)) == ["book.txt", "out.txt"]


def test_a_failure_leaves_the_old_file_and_no_litter(book: str, tmp_path: Path) -> None:
    Path("out.txt").write_text("old")
    engine = FakeEngine(failure=HipError("the disk is on fire"))
    assert run_hip("ask", book, QUESTION, "-o", "out.txt", engine=engine).code == 1
    assert Path("out.txt").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["book.txt", "out.txt"]


def test_an_answer_never_replaces_its_document(book: str) -> None:
    outcome = run_hip("ask", book, QUESTION, "-o", book)
    assert outcome.code == 2
    assert "would replace" in outcome.err
    assert Path(book).read_text().startswith("This is line 1.")


def test_cite_lists_places_after_a_blank_line(book: str) -> None:
    text = Path(book).read_text()
    probe = FakeEngine()
    run_hip("ask", book, QUESTION, engine=probe)
    # One token a character: the document starts where its first character does.
    ids = [token - FIRST_CHARACTER for token in probe.requests[0].context_ids]
    start = "".join(map(chr, [max(code, 0) for code in ids])).index(text)
    start += text.index("This is line 3.")
    evidence = (Evidence(start, start + len("This is line 3.\nThis"), 0.0),)
    outcome = run_hip("ask", book, QUESTION, "--cite", engine=FakeEngine(evidence=evidence))
    assert outcome.out == "It was Ada.\n\n[1] book.txt, lines 3-4\n    3: This is line 3.\n"
    row = run_hip("ask", book, QUESTION, "--json", engine=FakeEngine(evidence=evidence)).json
    assert row["evidence"] == [
        {
            "path": "book.txt",
            "page": None,
            "line_start": 3,
            "line_end": 4,
            "score": 0.0,
            "text": "This is line 3.\nThis",
        }
    ]


def test_settings_reach_the_engine_under_their_own_names(book: str) -> None:
    engine = FakeEngine()
    words = "--method window --window-tokens 128 --seed 7 -n 9 --temperature 0.5 --answer share"
    run_hip("ask", book, QUESTION, *words.split(), "--name", "letters", engine=engine)
    config, request = engine.configs[0], engine.requests[0]
    assert (config.method, config.method_settings) == ("window", {"window_tokens": 128})
    generation = request.generation
    assert (generation.seed, generation.max_new_tokens, generation.temperature) == (7, 9, 0.5)
    assert (request.answer, request.cache.name) == ("share", "letters")
    assert request.cache.directory.name == "hip-cache"


def test_no_cache_names_no_folder(book: str) -> None:
    engine = FakeEngine()
    run_hip("ask", book, QUESTION, "--no-cache", engine=engine)
    assert engine.requests[0].cache.directory is None


@pytest.mark.parametrize("mode", ["head", "tail", "middle"])
def test_fit_says_what_it_left_out(book: str, mode: str) -> None:
    text = Path(book).read_text()
    probe = FakeEngine()
    run_hip("ask", book, QUESTION, engine=probe)
    full, question = len(probe.requests[0].context_ids), len(probe.requests[0].question_ids)
    limit = full + question + 10 - 60
    words = ["ask", book, QUESTION, "-n", "10", "--context-limit", str(limit)]
    assert run_hip(*words).code == 4
    engine = FakeEngine()
    outcome = run_hip(*words, "--fit", mode, "--json", engine=engine)
    left_out = outcome.json["usage"]["truncated"]
    assert left_out >= 60
    assert outcome.json["usage"]["document_tokens"] == len(text) - left_out
    assert [row["code"] for row in outcome.json["warnings"]] == ["truncated"]
    request = engine.requests[0]
    assert len(request.context_ids) + question + 10 <= limit
    assert request.prefix_tokens == probe.requests[0].prefix_tokens
    left = engine.tokenizer.decode(request.context_ids)
    assert (text[:20] in left) == (mode != "tail")
    assert (text[-20:] in left) == (mode != "head")


@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_itself_fits(book: str, over: int) -> None:
    probe = FakeEngine()
    run_hip("ask", book, QUESTION, engine=probe)
    request = probe.requests[0]
    limit = len(request.context_ids) + len(request.question_ids) + 10 - over
    outcome = run_hip("ask", book, QUESTION, "-n", "10", "--context-limit", str(limit))
    assert outcome.code == (4 if over else 0)
    if over:
        assert f"{limit + 1}" in outcome.err and f"{limit}" in outcome.err


def test_a_question_longer_than_the_limit_is_told_so(book: str) -> None:
    outcome = run_hip("ask", book, QUESTION * 99, "--context-limit", "100", "--fit", "head")
    assert outcome.code == 4
    assert "question and answer take" in outcome.err


def test_stdin_as_source(book: str) -> None:
    for words in (["ask", "-", QUESTION], ["ask", QUESTION]):
        document = run_hip(*words, "--json", stdin=b"piped in\n").json
        assert document["inputs"][0]["path"] == "stdin"
    both = run_hip("ask", book, "-", QUESTION, "--json", stdin=b"piped in\n").json
    assert [entry["path"] for entry in both["inputs"]] == ["book.txt", "stdin"]


def test_the_question_from_a_file_or_stdin(book: str) -> None:
    Path("question.txt").write_bytes(b"\xef\xbb\xbfWho?\n")
    engine = FakeEngine()
    assert run_hip("ask", book, "-Q", "question.txt", engine=engine).code == 0
    assert run_hip("ask", book, "-Q", "-", stdin=b"Who?\n", engine=engine).code == 0
    first, second = engine.requests
    assert list(first.question_ids) == list(second.question_ids)


def test_a_question_is_utf8_whatever_the_locale(book: str) -> None:
    """Under LC_ALL=C Python hands over the bytes of a word as surrogates."""
    word = "café “x” 😀".encode().decode("ascii", "surrogateescape")
    engine = FakeEngine()
    assert run_hip("ask", book, f"Where is {word}?", engine=engine).code == 0
    assert "Where is café “x” 😀?" in engine.tokenizer.decode(engine.requests[0].question_ids)


def test_a_question_may_start_with_a_dash(book: str) -> None:
    engine = FakeEngine()
    assert run_hip("ask", book, "--", "-v means what?", engine=engine).code == 0
    assert "-v means what?" in engine.tokenizer.decode(engine.requests[0].question_ids)


@pytest.mark.parametrize(("separator", "flags"), [(b"\n", []), (b"\r\n", []), (b"\0", ["-0"])])
def test_sources_from_a_list(book: str, separator: bytes, flags: list[str]) -> None:
    Path("other.txt").write_text("other")
    listed = separator.join([b"book.txt", b"other.txt", b""])
    outcome = run_hip("ask", "--files-from", "-", *flags, QUESTION, "--json", stdin=listed)
    assert [entry["path"] for entry in outcome.json["inputs"]] == ["book.txt", "other.txt"]


def test_a_piped_stdin_is_not_touched_when_there_is_a_source(book: str) -> None:
    class Untouchable(io.TextIOWrapper):
        def read(self, *_: object) -> str:
            raise AssertionError("stdin was read")

    from hipcli.app import run
    from hipcli.terminal.console import Console
    from tests.hipcli.fakes import installed

    out = io.StringIO()
    with installed(FakeEngine()):
        code = run(["ask", book, QUESTION], Console(Untouchable(io.BytesIO()), out, io.StringIO()))
    assert (code, out.getvalue()) == (0, "It was Ada.\n")


def test_the_engine_is_closed_when_the_reader_goes_away(book: str) -> None:
    engine = FakeEngine(pieces=("a", "b", "c"))

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    from hipcli.app import run
    from hipcli.terminal.console import Console
    from tests.hipcli.fakes import installed

    err = io.StringIO()
    with installed(engine):
        code = run(["ask", book, QUESTION, "-q"], Console(None, Closed(), err))
    assert (code, err.getvalue()) == (141, "")
    assert engine.closed_early


@pytest.mark.parametrize(
    ("failure", "code", "name"),
    [
        (HipError("broken"), 1, "failure"),
        (DoesNotFitError("9 tokens, room for 8"), 4, "does_not_fit"),
        (NotCachedError("no session matches"), 5, "not_cached"),
        (ValueError("a [bold] bug\nin two lines"), 1, "internal"),
        (MemoryError(), 4, "does_not_fit"),
    ],
)
def test_failures_of_the_engine(book: str, failure: Exception, code: int, name: str) -> None:
    outcome = run_hip("ask", book, QUESTION, "-q", engine=FakeEngine((), failure=failure))
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    as_json = run_hip("ask", book, QUESTION, "--json", engine=FakeEngine((), failure=failure))
    assert as_json.code == code
    assert as_json.json["error"]["code"] == name
    assert list(as_json.json) == ["schema_version", "error"]


def test_an_interrupted_answer_keeps_its_line(book: str) -> None:
    engine = FakeEngine(("Half an ans",), failure=KeyboardInterrupt())
    outcome = run_hip("ask", book, QUESTION, "-q", engine=engine)
    assert outcome == Outcome(130, "Half an ans\n", "Interrupted\n")


def test_traceback_only_with_debug(book: str) -> None:
    failure = ValueError("boom")
    plain = run_hip("ask", book, QUESTION, engine=FakeEngine((), failure=failure))
    assert "Traceback" not in plain.err
    assert "run again with --debug" in plain.err
    assert "Traceback" in run_hip(
        "ask", book, QUESTION, "--debug", engine=FakeEngine((), failure=failure)
    ).err  # fmt: skip
