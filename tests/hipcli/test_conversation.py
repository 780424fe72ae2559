"""`--continue`: questions that follow on from one another."""

import dataclasses
import hashlib
import os
from pathlib import Path

import pytest

from hipcli.documents import Corpus
from hipcli.engine.events import Result, SessionInfo
from hipcli.engine.sessions import SessionStore
from hipcli.engine.sessions.disk import Disk
from hipcli.engine.sessions.manifest import Manifest
from hipcli.engine.tokenizer import load_tokenizer
from hipcli.prompts import assemble, question_ids, question_range
from hipcli.prompts.layout import INSTRUCTION
from hipcli.runs.conversation import keep, turns_of
from tests.engine.toy_tokenizers import KINDS
from tests.hipcli.fakes import FakeEngine, FakeTokenizer, run_hip
from tests.hipcli.saved import save


def test_three_turns_begin_as_two_do() -> None:
    tokenizer = FakeTokenizer()
    turns = (("Who?", "Ada."), ("To whom?", " Charles.\n"))
    first = question_ids("Who?", tokenizer, None)
    second = question_ids("To whom?", tokenizer, None, turns=turns[:1])
    third = question_ids("When?", tokenizer, None, turns=turns)
    assert second[: len(first)] == first and third[: len(second)] == second
    assert tokenizer.decode(third[len(second) :]).startswith("Charles.Question: When?")
    start, end = question_range("When?", tokenizer, turns=turns)
    assert tokenizer.decode(third[start:end]) == " When?"


@pytest.mark.parametrize("kind", ["chatml", "llama3", "mistral", "gemma"])
def test_three_turns_in_the_templates_of_models(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = KINDS[kind](tmp_path)
    tokenizer, text = load_tokenizer(folder), "The harbor was quiet.\n"
    context = assemble(Corpus.of_text("a.txt", text), tokenizer, None)
    asked, answers = ["nobody spoke?", "a word?", "The night?"], ["quiet", "one two"]
    turns = tuple(zip(asked, answers, strict=False))
    cached: list[int] = []
    for number, question in enumerate(asked):
        ids = question_ids(question, tokenizer, None, turns=turns[:number])
        whole = [*context.ids.tolist(), *ids]
        # What was read so far is how the longer prompt begins.
        assert whole[: len(cached)] == cached
        start, end = question_range(question, tokenizer, turns=turns[:number])
        assert tokenizer.decode(ids[start:end]).strip() == question
        cached = whole
    stock = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    documents = tokenizer.decode(context.ids).removeprefix(
        tokenizer.decode(tokenizer.scaffold().prefix_ids) + tokenizer.scaffold().lead
    )
    users = [f"Question: {question}\n{INSTRUCTION}" for question in asked]
    messages = [{"role": "user", "content": documents + users[0]}]
    for answer, user in zip(answers, users[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": user}]
    expected = stock.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.decode(cached) == tokenizer.decode(expected)
    controls = [index for index in cached if index in tokenizer.special_ids]
    assert controls == [index for index in expected if index in tokenizer.special_ids]


def test_a_session_keeps_turns() -> None:
    cache = Path(os.environ["HIP_CACHE_DIR"])
    session_id = save(cache, "a.txt").key[:12]
    store = SessionStore(cache)
    first, second = ("Who?", "Ada."), ("When?", "1843.")
    assert keep(store, session_id, (), first) == ""
    assert keep(store, session_id, (first,), second) == ""
    assert turns_of(store.find(session_id)) == (first, second)
    assert keep(store, session_id, (first,), second) == "another question was kept meanwhile"
    assert keep(store, "", (), first) == "nothing is saved"
    assert "no session" in keep(store, "f" * 12, (), first)
    # Neither is what two asked at once, of whom one was first; asking the documents begins anew.
    assert keep(store, session_id, (), first, resumed=True) == "another question was kept meanwhile"
    assert keep(store, session_id, (), second) == ""
    assert turns_of(store.find(session_id)) == (second,)
    assert run_hip("sessions", "show", "--json").json["session"]["turns"] == 1
    assert run_hip("sessions", "verify").code == 0


class SavingEngine(FakeEngine):
    """Says that its answers come from a session that is there."""

    session_id = ""

    def ask(self, request):  # type: ignore[no-untyped-def]
        for event in super().ask(request):
            if isinstance(event, Result):
                info = SessionInfo(id=self.session_id, complete=True)
                event = dataclasses.replace(event, session=info)
            yield event


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SavingEngine:
    monkeypatch.chdir(tmp_path)
    Path("letters").write_text("A letter from Ada.\n")
    made = SavingEngine()
    made.session_id = save(Path(os.environ["HIP_CACHE_DIR"]), "letters").key[:12]
    return made


def test_continue_keeps_question_and_answer(engine: SavingEngine) -> None:
    outcome = run_hip("ask", "letters", "Who?", "--continue", "--json", engine=engine)
    assert outcome.code == 0, outcome.err
    assert outcome.json["session"]["turns"] == 1 and outcome.json["warnings"] == []
    store = SessionStore(Path(os.environ["HIP_CACHE_DIR"]))
    assert turns_of(store.find(engine.session_id)) == (("Who?", "It was Ada."),)


def test_turns_stand_before_the_next_question(engine: SavingEngine) -> None:
    run_hip("ask", "letters", "Who?", "--continue", engine=engine)
    store = SessionStore(Path(os.environ["HIP_CACHE_DIR"]))
    request = engine.requests[0]
    record = store.find(engine.session_id)
    store.remember(record, request.extra)
    ids = request.context_ids.astype("<i4")
    (record.path / "tokens.i32").write_bytes(ids.tobytes())
    manifest = Manifest.read(record.path)
    sha256 = hashlib.sha256(ids.tobytes()).hexdigest()
    dataclasses.replace(manifest, tokens_sha256=sha256).write(record.path, Disk())
    outcome = run_hip("ask", "-c", "When?", "--json", engine=engine)
    assert outcome.code == 0, outcome.err
    assert outcome.json["session"]["turns"] == 1
    asked = engine.tokenizer.decode(engine.requests[1].question_ids)
    assert asked.index("Who?") < asked.index("It was Ada.") < asked.index("When?")
    assert engine.requests[1].extra["turns"] == [["Who?", "It was Ada."]]


def test_a_turn_that_cannot_be_kept_is_told(engine: SavingEngine) -> None:
    engine.session_id = ""
    outcome = run_hip("ask", "letters", "Who?", "--continue", "--json", engine=engine)
    assert outcome.code == 0
    assert [row["code"] for row in outcome.json["warnings"]] == ["turn_not_kept"]
    assert run_hip("ask", "letters", "Who?", "--continue", "--no-cache").code == 2
