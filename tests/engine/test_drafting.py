"""Guessing tokens changes how many passes an answer takes, and nothing else of it."""

import dataclasses
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from hipcli.engine.answering.decoding import generate
from hipcli.engine.answering.drafting import MOST_REST, Drafter, draft_tokens, evidence_texts
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.answering.speculation import generate_drafted
from hipcli.engine.config import GenerationConfig
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import AnswerPass, PrefillPass
from tests.engine.test_method_laws import SPARSE
from tests.engine.test_sessions import answer, answerer_of, read, request
from tests.engine.tiny import random_ids, tiny_model

METHODS = {**SPARSE, "dense": DenseMethod}
ANSWER_TOKENS = 90


@pytest.fixture(scope="module")
def host() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.fixture(scope="module")
def device() -> Runner:
    return Runner(tiny_model("llama"), backend="reference")


def drafter_of(*texts: list[int], most: int = 8, ends: frozenset[int] = frozenset()) -> Drafter:
    drafter = Drafter(most, ends)
    drafter.add(texts)
    return drafter


def test_what_follows_in_the_best_text_is_proposed() -> None:
    drafter = drafter_of([1, 2, 3, 4, 5], [9, 2, 3, 7, 8, 6], [50, 2], most=4)
    drafter.push(3)
    assert drafter.propose(10) == [4, 5]
    # Three tokens say more than two, wherever they stand.
    drafter = drafter_of([1, 2, 3, 4, 5], [9, 2, 3, 7, 8, 6], [9, 2], most=4)
    drafter.push(3)
    assert drafter.propose(10) == [7, 8]
    assert drafter.propose(1) == [7]


def test_a_quote_is_followed_and_grows() -> None:
    text = list(range(100, 140))
    drafter = drafter_of(text, [7, 100], most=8)
    drafter.push(101)
    assert drafter.propose(20) == text[2:6]
    for token in text[2:7]:
        drafter.push(token)
    drafter.judge(4, 4)
    assert drafter.propose(20) == text[7:15]
    # Also where the same two tokens stood elsewhere before.
    drafter = drafter_of([105, 106, 1], text, [7, 100], most=4)
    for token in (101, 102, 103, 104, 105, 106):
        drafter.propose(4)
        drafter.push(token)
    assert drafter.propose(20) == text[7:9]


def test_the_answers_own_words_come_again() -> None:
    drafter = drafter_of([], [1], most=2)
    for token in (5, 6, 7, 8, 5, 6):
        drafter.push(token)
    assert drafter.propose(9) == [7]


def test_nothing_is_proposed_across_texts_or_behind_an_end() -> None:
    drafter = drafter_of([1, 2], [3, 4, 99, 5, 6], [1], most=6, ends=frozenset({99}))
    drafter.push(2)
    assert drafter.propose(9) == []
    drafter.push(3)
    drafter.push(4)
    assert drafter.propose(9) == [99]


def test_wrong_guesses_are_made_less_and_less_often() -> None:
    drafter = drafter_of([1, 1, 1, 1, 1, 1], [1, 1], most=8)
    made = 0
    for _ in range(400):
        draft = drafter.propose(15)
        made += bool(draft)
        drafter.judge(len(draft), 0)
        drafter._text[-3:] = [1, 1, 1]
    assert 400 // MOST_REST <= made <= 400 // MOST_REST + 8
    assert drafter.accepted == 0 and drafter.drafted < 40


def test_defaults() -> None:
    assert draft_tokens(None, "cpu") > 0
    assert draft_tokens(None, "triton") == 0
    assert draft_tokens(0, "cpu") == 0 and draft_tokens(5, "triton") == 5
    with pytest.raises(ValueError, match="draft_tokens is 16"):
        GenerationConfig(draft_tokens=16)


def test_evidence_is_given_best_first() -> None:
    ids = torch.arange(640).numpy()
    texts = evidence_texts(ids, [7, 2, 3], (10, 640))
    assert 7 * 64 in texts[0] and 2 * 64 in texts[1] and 3 * 64 in texts[1]
    assert evidence_texts(ids, [], (10, 640)) == []


def after_prompt(runner: Runner, method, length: int):
    ids = random_ids(length, seed=length)
    store = runner.new_store(length + ANSWER_TOKENS)
    step = StepInput(store, runner.tables, PrefillPass(method), 0)
    logits = runner.logits(ids, step)[-1]
    method.reset()
    return store, logits


def answered(runner: Runner, attention: AnswerPass, prompt: int, sampler, drafter=None, most=None):
    """Tokens of an answer, what the store holds behind them, and how many tokens ran."""
    store, logits = after_prompt(runner, attention.method, prompt)
    told, lengths = [], []
    most = most or ANSWER_TOKENS
    for token in generate(runner, store, attention, sampler, logits, most, drafter):
        told.append(token)
        lengths.append(store.length)
    # A token is handed out when the store counts those before it.
    assert lengths == list(range(prompt, prompt + len(told)))
    return told, store


def guesses(answer: list[int], seed: int) -> list[int]:
    """The answer with every ninth token or so wrong, at places of chance."""
    chance = torch.Generator().manual_seed(seed)
    wrong = (torch.rand(len(answer), generator=chance) < 0.11).tolist()
    return [3 if miss else token for token, miss in zip(answer, wrong, strict=True)]


def pass_of(name: str, given: bool) -> AnswerPass:
    return AnswerPass(METHODS[name](), torch.tensor([1, 2, 4]) if given else None)


# Given pages stand for share, and for attend by `hip`.
PASSES = [(name, False) for name in METHODS] + [("hip", True)]


@pytest.mark.parametrize(("name", "given"), PASSES)
@pytest.mark.parametrize("prompt", [100, 250, 500])
def test_the_same_tokens_with_guesses(host: Runner, name: str, given: bool, prompt: int) -> None:
    """Across the borders of pages, of windows and of dense attention."""
    expected, plain = answered(host, pass_of(name, given), prompt, Sampler(0, 0))
    for seed in (1, 2):
        drafter = drafter_of(guesses(expected, seed), expected[:1], most=15)
        told, store = answered(host, pass_of(name, given), prompt, Sampler(0, 0), drafter)
        assert told == expected
        # What is left behind the prompt is what single steps leave.
        for layer in range(host.layout.num_layers):
            mine, theirs = (kept.tokens(layer, plain.length) for kept in (store, plain))
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    if METHODS[name]().own_attention is None and (given or name in ("window", "dense")):
        assert 0 < drafter.accepted < drafter.drafted
    elif prompt > 300:
        # What the next token selects is known once it has passed.
        assert drafter.drafted == 0


@pytest.mark.parametrize(("name", "given"), [("dense", False), ("window", False), ("hip", True)])
def test_the_same_tokens_by_the_kernels_of_a_gpu(
    host: Runner, device: Runner, name: str, given: bool
) -> None:
    expected, _ = answered(host, pass_of(name, given), 300, Sampler(0, 0))
    drafter = drafter_of(guesses(expected, 3), expected[:1], most=7)
    told, _ = answered(device, pass_of(name, given), 300, Sampler(0, 0), drafter)
    assert told == expected
    assert drafter.accepted > 20


def single_steps(runner: Runner, tokens: list[int], prompt: int) -> torch.Tensor:
    """Logits fp32 [len(tokens), vocab_size] that each of the tokens is drawn from, one by one."""
    store, logits = after_prompt(runner, DenseMethod(), prompt)
    rows, attention = [logits], AnswerPass(DenseMethod())
    for token in tokens[:-1]:
        step = StepInput(store, runner.tables, attention, store.length)
        rows.append(runner.logits(torch.tensor([token]), step)[-1])
    return torch.stack(rows)


def test_in_bf16_nothing_but_ties_may_turn_out_otherwise(host: Runner) -> None:
    """A product of several rows rounds otherwise than one of a single row."""
    low = Runner(tiny_model("llama", torch.bfloat16))
    expected, _ = answered(low, pass_of("dense", False), 200, Sampler(0, 0))
    drafter = drafter_of(guesses(expected, 1), expected[:1], most=12)
    told, _ = answered(low, pass_of("dense", False), 200, Sampler(0, 0), drafter)
    assert drafter.accepted > 20
    rows, exact = single_steps(low, told, 200), single_steps(host, told, 200)
    # Both ways may be as far from the truth as bf16 is.
    budget = 2 * (rows - exact).abs().max()
    chosen = rows.gather(1, torch.tensor(told)[:, None])[:, 0]
    assert (rows.amax(1) - chosen).max() <= budget
    assert budget < (rows.amax(1) - rows.median(1).values).min()


@pytest.mark.parametrize("most", [1, 2, 3, 4, 10, 63, 64, 65])
def test_as_many_tokens_as_were_asked_for(host: Runner, most: int) -> None:
    expected, _ = answered(host, pass_of("dense", False), 126, Sampler(0, 0))
    drafter = drafter_of(expected, expected[:1], most=15)
    told, _ = answered(host, pass_of("dense", False), 126, Sampler(0, 0), drafter, most)
    assert told == expected[:most]


def test_sampled_tokens_are_the_same_too(host: Runner) -> None:
    accepted = 0
    for seed in range(8):
        expected, _ = answered(host, pass_of("dense", False), 90, Sampler(0.7, seed))
        drafter = drafter_of(guesses(expected, seed), expected[:1], most=6)
        told, _ = answered(host, pass_of("dense", False), 90, Sampler(0.7, seed), drafter)
        assert told == expected
        accepted += drafter.accepted
    assert accepted > 100


def test_sampled_tokens_follow_the_probabilities() -> None:
    """Whether a guess is taken or not; the second token's probabilities depend on the first."""
    first = torch.tensor([0.1, 0.6, 0.3])
    second = torch.tensor([[0.2, 0.5, 0.3], [0.7, 0.1, 0.2], [0.4, 0.4, 0.2]])

    def logits(ids: torch.Tensor, step: StepInput, *, keep: int) -> torch.Tensor:
        return second[ids].log()

    runner = SimpleNamespace(logits=logits, tables=None)
    attention = SimpleNamespace(together=lambda start, most: most, forget=lambda length: None)
    counts: Counter[tuple[int, ...]] = Counter()
    sampler, rounds = Sampler(1.0, 5), 6000
    for _ in range(rounds):
        store = SimpleNamespace(length=0)
        # After 2 comes 0, it guesses; after anything else nothing.
        drafter = drafter_of([0, 2, 0, 1], [0], most=2)
        told = generate_drafted(runner, store, attention, sampler, first.log(), 3, drafter)
        counts[tuple(told)] += 1
    for one in range(3):
        for two in range(3):
            for three in range(3):
                share = float(first[one] * second[one, two] * second[two, three])
                assert abs(counts[one, two, three] / rounds - share) < 0.02


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("length", [60, 900])
def test_answers_with_and_without(host: Runner, mode: str, length: int) -> None:
    generation = GenerationConfig(max_new_tokens=40, draft_tokens=0)
    ask = request(None, length=length, answer=mode, generation=generation)
    context, _ = read(host, ask)
    before = context.store.tail()
    expected = answer(host, context, ask)
    context.store.rewind(before)
    guessing = dataclasses.replace(ask, generation=GenerationConfig(40, draft_tokens=8))
    assert answer(host, context, guessing) == expected
    # The next question finds the context as it was read, rejected tokens and all forgotten.
    context.store.rewind(before)
    assert answer(host, context, ask) == expected


def test_an_end_among_the_guesses(host: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = request(None, length=500, answer="reread", generation=GenerationConfig(30))
    context, _ = read(host, ask)
    before = context.store.tail()
    expected = answer(host, context, ask)
    end = expected[17]
    context.store.rewind(before)
    answerer = dataclasses.replace(answerer_of(host, context, ask), stop_ids=frozenset({end}))
    monkeypatch.setattr(
        "hipcli.engine.answering.answerer.evidence_texts",
        lambda *_: [[*ask.question_ids, *expected]],
    )
    assert list(answerer.tokens()) == expected[: expected.index(end)]
    assert answerer.finish_reason == "stop"
    # The end itself was guessed too, and nothing behind it.
    assert answerer.drafter is not None
    assert answerer.drafter.accepted == answerer.drafter.drafted >= 5
