"""Calibration of heads: the fit, its file, and what it changes."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from hipcli.engine.answering import answerer
from hipcli.engine.answering.second_look import Seen
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.calibration import fitting, texts
from hipcli.engine.calibration.calibrating import CalibrationPlan, calibrate
from hipcli.engine.calibration.collecting import MOST_PAGES, HeadBallot, candidates
from hipcli.engine.calibration.fitting import Question, fit, fit_look, recall_1, recall_1_looked
from hipcli.engine.calibration.texts import ALIKE, UNSHARED, lesson
from hipcli.engine.config import GenerationConfig
from hipcli.engine.engine import Engine
from hipcli.engine.errors import ModelError, UsageError
from hipcli.engine.evaluation import wordings
from hipcli.engine.events import Detail, Event, Notice, Result, Token
from hipcli.engine.models import heads as heads_module
from hipcli.engine.models.heads import (
    FILE,
    HeadWeights,
    LookRows,
    check_writable,
    find_heads,
    read_heads,
    remove_heads,
    write_heads,
)
from hipcli.engine.models.weights import digest
from hipcli.engine.request import AskRequest
from tests.engine.evaluation.tiny import tiny_engine, toy_prompts

HEADS, PAGES, BEST = 12, 30, 5


def synthetic(count: int, noise: float, seed: int = 0) -> list[Question]:
    """Questions whose right page one head knows; the others vote by chance, `noise` each."""
    chance = torch.Generator().manual_seed(seed)
    questions = []
    for number in range(count):
        votes = noise * torch.rand(HEADS, PAGES, generator=chance)
        right = torch.zeros(PAGES, dtype=torch.bool)
        right[number % PAGES] = True
        votes[BEST] = right.float()
        questions.append(Question(votes, right))
    return questions


def test_the_head_that_retrieves_is_found() -> None:
    weights = fit(synthetic(24, noise=1.0))
    # Fitted all for one, that one has the whole part of HEADS, and every head its even part.
    even = 1 - fitting.FITTED_PART
    assert weights[BEST] > even + fitting.FITTED_PART * HEADS * 0.7
    others = torch.cat((weights[:BEST], weights[BEST + 1 :]))
    assert ((others >= even) & (others < even + 0.2)).all()
    torch.testing.assert_close(weights.mean(), torch.tensor(1.0))
    fresh = synthetic(60, noise=1.0, seed=1)
    assert recall_1(fresh, weights) > recall_1(fresh, torch.ones(HEADS))


def test_the_loss_is_the_likelihood_of_the_right_pages() -> None:
    votes = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]], dtype=torch.float64)
    question = Question(votes, torch.tensor([True, False, True]))
    weights = torch.tensor([2.0, 1.0], dtype=torch.float64)
    powers = [(value + fitting.FLOOR) ** fitting.SHARPNESS for value in (2.0, 5.0, 3.0)]
    expected = -torch.tensor((powers[0] + powers[2]) / sum(powers), dtype=torch.float64).log()
    torch.testing.assert_close(fitting._loss(weights, question), expected)


def test_a_look_learns_which_head_means_what() -> None:
    """One head attends the right page more than others, another one less."""
    chance = torch.Generator().manual_seed(2)
    questions = []
    for plain in synthetic(40, noise=1.0):
        attention = torch.randn(PAGES, 2, 3, 4, generator=chance)
        attention[plain.right, 0, 1, 2] += 3
        attention[plain.right, 1, 0, 3] -= 3
        seen = Seen(torch.zeros(PAGES), attention)
        questions.append(replace(plain, looked=torch.arange(PAGES), seen=seen))
    even = torch.ones(HEADS)
    look = fit_look(questions[:30], even)
    assert look.attention is not None
    assert look.attention.argmax() == 1 * 4 + 2
    assert look.attention.argmin() == 12 + 3
    assert recall_1_looked(questions[30:], even, look) > recall_1(questions[30:], even) + 0.3


def test_heads_alike_count_alike() -> None:
    votes = torch.rand(1, PAGES, generator=torch.Generator().manual_seed(3)).expand(HEADS, -1)
    right = torch.zeros(PAGES, dtype=torch.bool)
    right[4] = True
    torch.testing.assert_close(fit([Question(votes, right)]), torch.ones(HEADS))


def test_pages_that_may_win_are_kept() -> None:
    votes = torch.rand(4, 500, generator=torch.Generator().manual_seed(1))
    votes[:, 300], votes[2, 301] = 0, 0.1
    votes[:3, 400], votes[3, 400] = 0, 2
    votes[:, 0] = 9
    kept = candidates(votes, wanted=[300, 301], first_page=1, held_out=True)
    assert kept.right.sum() == 2 and kept.held_out
    assert kept.votes[3].max() == 2 and kept.votes.max() == 2
    assert MOST_PAGES <= kept.votes.shape[1] <= MOST_PAGES + 6
    found = sorted(kept.votes[:, kept.right].sum(0).tolist())
    assert found == pytest.approx([0.0, float(votes[:, 301].sum())])


def test_lessons_teach_nothing_that_is_asked_in_evaluations() -> None:
    assert not {text for pair in UNSHARED for text in pair} & {
        text for pair in wordings.UNSHARED for text in pair
    }
    taught = lesson(Random(1))
    assert len(taught.held_out) == len(taught.draft.probes) == 2 * ALIKE + len(UNSHARED)
    assert len(taught.draft.needles) == ALIKE + len(UNSHARED)
    for probe, held_out in zip(taught.draft.probes, taught.held_out, strict=True):
        (needle,) = probe.needles
        assert probe.answers[0] in taught.draft.needles[needle].sentence
        # All wordings of a fact lie on the same side.
        same = {
            other
            for asked, other in zip(taught.draft.probes, taught.held_out, strict=True)
            if asked.needles == probe.needles
        }
        assert same == {held_out}
    assert lesson(Random(1)) == taught != lesson(Random(2))


@pytest.mark.parametrize("pair", UNSHARED)
def test_questions_share_no_word_with_their_sentence(pair: tuple[str, str]) -> None:
    common = {"who", "which", "the", "a", "in", "is", "at", "of", "when", "has", "what"}
    sentence, question = (
        {word.strip(".?").lower() for word in text.split()} - common for text in pair
    )
    assert not sentence & question


def counted(ballot: Ballot, layers: int = 2) -> Ballot:
    chance = torch.Generator().manual_seed(2)
    for layer in range(layers):
        page_max = 4 * torch.randn(5, 3, 8, generator=chance)
        ballot.count(layer, page_max, page_max.logsumexp(-1))
    return ballot


def ballot(kind: Callable[..., Ballot] = Ballot, **fields: Any) -> Ballot:
    return counted(kind(8 * 64, 16, (1, 4), **fields))


def test_weights_of_heads_weigh_their_votes() -> None:
    alike, by_head = ballot(), ballot(HeadBallot)
    assert isinstance(by_head, HeadBallot)
    votes = torch.stack(by_head.by_head)
    torch.testing.assert_close(votes.sum((0, 1)), alike.votes())
    torch.testing.assert_close(by_head.votes(), alike.votes())
    assert ballot(head_weights=torch.ones(2, 3)).votes().equal(alike.votes())
    weights = torch.tensor([[0.0, 2.0, 0.5], [1.0, 0.0, 3.0]])
    expected = torch.einsum("lhp,lh->p", votes, weights)
    torch.testing.assert_close(ballot(head_weights=weights).votes(), expected)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return tiny_engine(tmp_path_factory.mktemp("model"), sharp=True)


@pytest.fixture
def bare(engine: Engine) -> Engine:
    """The engine of a model without a calibration."""
    remove_heads(engine.folder.path)
    return anew(engine)


def anew(engine: Engine, **changes: Any) -> Engine:
    """As if opened again, with the weights that are loaded."""
    config = replace(engine.config, **changes)
    return Engine(config, engine.folder, engine.tokenizer, engine.loaded)


def some_heads(engine: Engine, **changes: Any) -> HeadWeights:
    layers, heads = engine.runner.layout.num_layers, engine.runner.num_heads
    chance = Random(4)
    rows = tuple(tuple(round(chance.random(), 6) for _ in range(heads)) for _ in range(layers))
    look = LookRows(0.2, rows, rows)
    heads_of = HeadWeights(digest(engine.folder.path), rows, {"seed": 4}, {"held_out": 1}, look)
    return replace(heads_of, **changes)


def test_a_file_comes_back_as_it_was_written(bare: Engine) -> None:
    folder = bare.folder.path
    assert find_heads(folder).heads is None and not find_heads(folder).problem
    heads = some_heads(bare)
    assert write_heads(folder, heads) == folder / FILE
    assert read_heads(folder) == find_heads(folder).heads == heads
    assert heads.digest == read_heads(folder).digest and len(heads.digest) == 16
    assert heads.digest != replace(heads, weights=((1.0, 2.0),)).digest
    assert not [entry for entry in folder.iterdir() if entry.name.startswith((".", FILE + "."))]
    assert remove_heads(folder) and not remove_heads(folder)


def spoil(record: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**record, **changes})


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda record: "",
        lambda record: "[]",
        lambda record: json.dumps(record)[:-20],
        lambda record: spoil(record, schema_version=2),
        lambda record: json.dumps({k: v for k, v in record.items() if k != "weights"}),
        lambda record: spoil(record, weights=[]),
        lambda record: spoil(record, weights=5),
        lambda record: spoil(record, weights=[[1, 2], [3]]),
        lambda record: spoil(record, weights=[[0, 0], [0, 0]]),
        lambda record: spoil(record, weights=[[1, -1]]),
        lambda record: spoil(record, weights=[[1, float("nan")]]),
        lambda record: spoil(record, weights=[[1, float("inf")]]),
        lambda record: spoil(record, weights=[[1, 1e39]]),
        lambda record: spoil(record, weights=[[1, "1"]]),
        lambda record: spoil(record, weights=[[1, True]]),
        lambda record: spoil(record, weights=[[1, None]]),
        lambda record: spoil(record, look=5),
        lambda record: spoil(record, look={**record["look"], "words": [[1.0, 2.0]]}),
        lambda record: spoil(record, look={**record["look"], "likelihood": float("nan")}),
        lambda record: spoil(record, look={**record["look"], "last": [["x"]]}),
    ],
)
def test_a_damaged_file_is_not_used(bare: Engine, spoilt: Callable[[Any], str]) -> None:
    folder = bare.folder.path
    write_heads(folder, some_heads(bare))
    (folder / FILE).write_text(spoilt(json.loads((folder / FILE).read_text())))
    with pytest.raises(ModelError):
        read_heads(folder)
    found = find_heads(folder)
    assert found.heads is None and "hip models calibrate" in found.problem


def test_weights_that_hip_knows_come_with_a_calibration(
    bare: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file of the user's own comes before it; one that only begins alike is another model's."""
    folder = bare.folder.path
    known, own = some_heads(bare), replace(some_heads(bare), measured={"held_out": 2})
    write_heads(tmp_path, known)
    (tmp_path / FILE).rename(tmp_path / f"{known.weights_digest[:16]}.json")
    monkeypatch.setattr(heads_module, "MEASURED", tmp_path)
    assert find_heads(folder).heads == known
    write_heads(folder, own)
    assert find_heads(folder).heads == own
    remove_heads(folder)
    write_heads(tmp_path, replace(known, weights_digest=known.weights_digest[:16] + "0" * 48))
    (tmp_path / FILE).rename(tmp_path / f"{known.weights_digest[:16]}.json")
    assert find_heads(folder).heads is None


def test_what_hip_brings_is_sound() -> None:
    files = list(heads_module.MEASURED.iterdir())
    assert files
    for file in files:
        record = json.loads(file.read_text())
        assert file.name == f"{record['weights_digest'][:16]}.json"
        weights = torch.tensor(record["weights"])
        assert weights.min() > 0
        assert weights.mean().item() == pytest.approx(1, abs=1e-3)
        measured = record["measured"]
        before, after = measured["recall_1_before"], measured["recall_1_after"]
        assert measured["held_out"] > 0 and 0 < before < after < measured["recall_1_looked"] <= 1


def test_another_models_file_is_not_used(bare: Engine) -> None:
    folder = bare.folder.path
    write_heads(folder, some_heads(bare, weights_digest="0" * 64))
    assert "other weights" in find_heads(folder).problem
    write_heads(folder, some_heads(bare, weights=((1.0, 2.0),), look=None))
    assert "(1, 2) layers and heads" in find_heads(folder).problem


def test_a_folder_that_takes_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())

    def refuse(*arguments: Any, **fields: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("os.unlink", refuse)
    for work in (check_writable, remove_heads, lambda path: write_heads(path, SMALLEST)):
        with pytest.raises(ModelError, match="Read-only file system") as caught:
            work(tmp_path)
        assert "copy the model" in caught.value.hint


SMALLEST = HeadWeights("", ((1.0,),), {}, {})


def ask(engine: Engine, **changes: Any) -> tuple[Result, list[Event]]:
    prompts = toy_question(engine)
    short = GenerationConfig(max_new_tokens=1)
    *events, last = engine.ask(AskRequest(**prompts, answer="share", generation=short, **changes))
    assert isinstance(last, Result)
    return last, events


def toy_question(engine: Engine) -> dict[str, Any]:
    from hipcli.prompts.whole_text import TextPrompts

    prompts = TextPrompts(engine.tokenizer)
    text = " ".join(
        f"{name} lives in house {number}." for number, name in enumerate("abcdefgh" * 60)
    )
    placed = prompts.context(text)
    ids, span = prompts.question("Where does d live?")
    return {
        "context_ids": placed.ids,
        "question_ids": ids,
        "prefix_tokens": placed.prefix_tokens,
        "question_span": span,
    }


def test_an_engine_votes_by_the_file(bare: Engine) -> None:
    plain, _ = ask(bare)
    assert bare.heads is None and bare.description["model"]["heads"] is None
    heads = some_heads(bare)
    write_heads(bare.folder.path, heads)
    calibrated = anew(bare)
    assert calibrated.description["model"]["heads"] == heads.digest
    weighed, events = ask(calibrated)
    assert weighed.evidence != plain.evidence
    assert not any(isinstance(event, Notice) for event in events)
    # Weights all alike are as good as none, and so is the switch.
    assert ask(anew(bare, calibrated=False))[0].evidence == plain.evidence
    even = tuple(tuple(1.0 for _ in row) for row in heads.weights)
    write_heads(bare.folder.path, replace(heads, weights=even, look=None))
    assert ask(anew(bare))[0].evidence == plain.evidence


def test_a_look_is_told_before_the_answer(bare: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answerer, "CLEAR_MARGIN", float("inf"))
    _, events = ask(bare)
    told = [isinstance(event, Detail) and "looked again" in event.message for event in events]
    tokens = [isinstance(event, Token) for event in events]
    assert told.count(True) == 1
    assert told.index(True) < tokens.index(True)


def test_every_round_votes_by_the_file(bare: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    write_heads(bare.folder.path, some_heads(bare))
    given = []
    count = Ballot.count

    def noted(self: Ballot, layer: int, *rest: Any) -> None:
        given.append(self.head_weights)
        count(self, layer, *rest)

    monkeypatch.setattr(Ballot, "count", noted)
    ask(anew(bare), rounds=3)
    assert len(given) == 3 * bare.runner.layout.num_layers
    assert all(weights is not None for weights in given)


def test_a_file_that_is_not_used_is_told_once(bare: Engine) -> None:
    plain, _ = ask(bare)
    write_heads(bare.folder.path, some_heads(bare, weights_digest="0"))
    asked = anew(bare)
    result, events = ask(asked)
    (notice,) = (event for event in events if isinstance(event, Notice))
    assert notice.code == "heads_ignored" and "hip models calibrate" in notice.message
    assert result.evidence == plain.evidence
    assert not any(isinstance(event, Notice) for event in ask(asked)[1])


def test_the_same_seed_gives_the_same_weights(
    bare: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "ALIKE", 4)
    monkeypatch.setattr(texts, "UNSHARED", UNSHARED[:4])
    prompts, plan = toy_prompts(tmp_path), CalibrationPlan((1024,), 1, 0)
    told: list[tuple[int, int]] = []
    first = calibrate(bare, prompts, plan, on_text=lambda *where: told.append(where))
    assert told == [(0, 2), (1, 2)]
    assert first.shape == (bare.runner.layout.num_layers, bare.runner.num_heads)
    assert first.weights_digest == digest(bare.folder.path)
    assert first.settings["lengths"] == [1024]
    assert (first.measured["questions"], first.measured["held_out"]) == (18, 6)
    # What a model has already plays no part.
    write_heads(bare.folder.path, some_heads(bare))
    assert calibrate(anew(bare), prompts, plan) == first
    assert calibrate(bare, prompts, replace(plan, seed=1)).weights != first.weights


def test_plans_that_teach_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="--samples"):
        CalibrationPlan((4096,), 0, 0)
