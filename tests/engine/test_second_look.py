"""A second look: probabilities as the stock model has them, the order they make, the same store."""

import dataclasses

import numpy as np
import pytest
import torch

from hipcli.engine.answering import answerer as answering
from hipcli.engine.answering import vote
from hipcli.engine.answering.second_look import SecondLook
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.config import CacheConfig
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import PrefillPass
from hipcli.engine.store.pages import PAGE_TOKENS
from tests.engine.test_sessions import answerer_of, read, request
from tests.engine.tiny import random_ids, stock_logits, tiny_hip, tiny_model

SCAFFOLD, FIRST = 10, 2
CONTEXT_TOKENS = 2 * PAGE_TOKENS + 40


def test_likelihoods_are_those_of_the_stock_model() -> None:
    """Pages that were read right behind the scaffold have the keys of a prompt of their own."""
    model, ids, question = tiny_model("llama"), random_ids(3 * PAGE_TOKENS), random_ids(9, seed=5)
    prompts = [
        torch.cat((ids[:SCAFFOLD], ids[page * PAGE_TOKENS :][:PAGE_TOKENS])) for page in (1, 2)
    ]
    expected = []
    for prompt in (prompts[0], prompts[1][: SCAFFOLD + 40]):
        log_p = stock_logits(model, torch.cat((prompt, question))).log_softmax(-1)
        rows = range(len(prompt) + FIRST, len(prompt) + len(question))
        expected.append(sum(log_p[row - 1, question[row - len(prompt)]].item() for row in rows))
    runner = Runner(model)
    store = runner.new_store(4 * PAGE_TOKENS)
    for page, prompt in enumerate(prompts, 1):
        alone = runner.new_store(len(prompt))
        runner.forward(prompt, StepInput(alone, runner.tables, PrefillPass(DenseMethod()), 0))
        for layer in range(store.layout.num_layers):
            k, v = alone.tokens(layer, len(prompt))
            store.append(layer, 0, k[:SCAFFOLD], v[:SCAFFOLD])
            store.append(layer, page * PAGE_TOKENS, k[SCAFFOLD:], v[SCAFFOLD:])
    store.length = 3 * PAGE_TOKENS
    look = SecondLook(runner, tiny_hip(), store, CONTEXT_TOKENS, SCAFFOLD)
    found = look.likelihoods([1, 2], question, FIRST)
    assert found == pytest.approx(expected, abs=1e-3)
    # More pages than one pass takes, and in any order.
    many = look.likelihoods([2, 1] * 10, question, FIRST)
    assert many == pytest.approx(expected[::-1] * 10, abs=1e-3)


def voted(*votes: float) -> Ballot:
    ballot = Ballot(len(votes) * PAGE_TOKENS, 8, (0, 1))
    ballot.word_votes = torch.tensor([votes])
    return ballot


def test_a_look_weighs_votes_and_counts_the_others_as_the_least_likely() -> None:
    ballot = voted(1.0, 4.0, 3.0, 2.5)
    assert ballot.margin([1, 2]) == pytest.approx(np.log(4 / 3))
    ballot.look_again([1, 2], [-30.0, -20.0])
    least = np.exp(-10 * vote.LOOK_WEIGHT)
    torch.testing.assert_close(
        ballot.votes(), torch.tensor([least, 4 * least, 3.0, 2.5 * least]), check_dtype=False
    )
    assert ballot.ranking(0, 4 * PAGE_TOKENS) == [2, 1, 3, 0]
    best, *_ = ballot.evidence(0, 4 * PAGE_TOKENS, 4)
    assert (best.start_token, best.score) == (2 * PAGE_TOKENS, 0.0)


def test_of_a_pruned_context_the_best_pages_are_those_of_the_store() -> None:
    ballot = voted(1.0, 4.0, 3.0)
    ballot.kept_pages = np.array([0, 5, 9])
    assert ballot.best(0, 10 * PAGE_TOKENS, 2) == [1, 2]
    assert ballot.best(9 * PAGE_TOKENS, 10 * PAGE_TOKENS, 2) == [2]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
def test_a_look_changes_the_order_alone(runner: Runner, monkeypatch, mode: str) -> None:
    """Without weight it changes nothing: what the question left in the store is still there."""
    monkeypatch.setattr(answering, "CLEAR_MARGIN", float("inf"))
    ask = request(None, answer=mode, cache=CacheConfig(None))
    told = {}
    for name, looks, weight in (("none", 0, 0.0), ("no weight", 6, 0.0), ("look", 6, 2.0)):
        monkeypatch.setattr(vote, "LOOK_WEIGHT", weight)
        context, _ = read(runner, ask)
        made = dataclasses.replace(answerer_of(runner, context, ask), looks=looks)
        told[name] = list(made.tokens()), [passage.start_token for passage in made.evidence]
        assert bool(made.look) == bool(looks)
    assert told["none"] == told["no weight"]
    assert sorted(told["look"][1]) != told["look"][1] != told["none"][1]


def test_clear_votes_and_long_questions_are_not_looked_at_again(runner: Runner, monkeypatch):
    ask = request(None, cache=CacheConfig(None))
    for name, value in (("CLEAR_MARGIN", -1.0), ("MAX_LOOKING_TOKENS", 2)):
        context, _ = read(runner, ask)
        made = dataclasses.replace(answerer_of(runner, context, ask), looks=6)
        with monkeypatch.context() as patch:
            patch.setattr(answering, name, value)
            assert list(made.tokens())
        assert not made.look
