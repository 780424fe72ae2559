"""A second look: probabilities as the stock model has them, the order they make, the same store."""

import dataclasses

import numpy as np
import pytest
import torch

from hipcli.engine.answering import answerer as answering
from hipcli.engine.answering.second_look import FLOOR, LookWeights, SecondLook
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.config import CacheConfig
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.dense import DenseMethod
from hipcli.engine.passes import PrefillPass
from hipcli.engine.store.pages import PAGE_TOKENS
from tests.engine.test_sessions import answerer_of, read, request
from tests.engine.tiers import TieredRunner
from tests.engine.tiny import random_ids, stock_logits, tiny_hip, tiny_model

SCAFFOLD, FIRST = 10, 2
CONTEXT_TOKENS = 2 * PAGE_TOKENS + 40


def test_likelihoods_are_those_of_the_stock_model() -> None:
    """Pages that were read right behind the scaffold have the keys of a prompt of their own."""
    model, ids, question = tiny_model("llama"), random_ids(3 * PAGE_TOKENS), random_ids(9, seed=5)
    prompts = [
        torch.cat((ids[:SCAFFOLD], ids[page * PAGE_TOKENS :][:PAGE_TOKENS])) for page in (1, 2)
    ]
    expected, attention = [], []
    for prompt in (prompts[0], prompts[1][: SCAFFOLD + 40]):
        whole = torch.cat((prompt, question))
        log_p = stock_logits(model, whole).log_softmax(-1)
        attention.append(stock_attention(model, whole, len(prompt)))
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
    found = look.at([1, 2], question, (FIRST, len(question)))
    assert found.likelihoods.tolist() == pytest.approx(expected, abs=1e-3)
    for number, words in enumerate(attention):
        torch.testing.assert_close(found.attention[number].exp() - FLOOR, words, atol=1e-4, rtol=0)
    # More pages than one pass takes, and in any order.
    many = look.at([2, 1] * 20, question, (FIRST, len(question)))
    assert many.likelihoods.tolist() == pytest.approx(expected[::-1] * 20, abs=1e-3)
    torch.testing.assert_close(many.attention[1::2], found.attention[:1].expand(20, -1, -1, -1))


def stock_attention(model: torch.nn.Module, ids: torch.Tensor, question: int) -> torch.Tensor:
    """What each head of the stock model gives the page: [2, num_layers, num_heads]."""
    with torch.inference_mode():
        layers = model(ids.unsqueeze(0), use_cache=False, output_attentions=True).attentions
    page = torch.stack([layer[0, :, question:, SCAFFOLD:question].sum(-1) for layer in layers])
    return torch.stack((page[:, :, FIRST:].sum(-1), page[:, :, -1]))


def voted(*votes: float) -> Ballot:
    ballot = Ballot(len(votes) * PAGE_TOKENS, 8, (0, 1))
    ballot.word_votes = torch.tensor([votes])
    return ballot


def test_a_look_weighs_votes_and_counts_the_others_as_the_least_likely() -> None:
    ballot = voted(1.0, 4.0, 3.0, 2.5)
    assert ballot.margin([1, 2]) == pytest.approx(np.log(4 / 3))
    ballot.look_again([1, 2], torch.tensor([-3.0, -2.0]))
    least = np.exp(-1.0)
    torch.testing.assert_close(
        ballot.votes(), torch.tensor([least, 4 * least, 3.0, 2.5 * least]), check_dtype=False
    )
    assert ballot.ranking(0, 4 * PAGE_TOKENS) == [2, 1, 3, 0]
    evidence = ballot.evidence(0, 4 * PAGE_TOKENS, 4)
    assert [passage.start_token // PAGE_TOKENS for passage in evidence] == [2, 1, 3, 0]
    scores = [passage.score for passage in evidence]
    assert scores == pytest.approx([0, 0, np.log(2.5 / 3), np.log(1 / 3)])


def test_how_much_of_the_question_a_page_has() -> None:
    ballot = voted(1.0, 4.0, 3.0)
    assert ballot.words_found() == 0
    ballot.coverage = np.array([0.1, 0.5, 0.2], np.float32)
    assert ballot.words_found() == 0.5


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
    shape = (2, runner.layout.num_layers, runner.num_heads)
    heads = torch.zeros(shape), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    settings = {
        "none": (0, LookWeights()),
        "no weight": (6, LookWeights(0.0, heads[0])),
        "words": (6, LookWeights(2.0)),
        "heads": (6, LookWeights(0.0, heads[1])),
    }
    for name, (looks, weights) in settings.items():
        context, _ = read(runner, ask)
        made = dataclasses.replace(
            answerer_of(runner, context, ask), looks=looks, look_weights=weights
        )
        told[name] = list(made.tokens()), [passage.start_token for passage in made.evidence]
        assert bool(made.look) == bool(looks)
    assert told["none"] == told["no weight"]
    assert len({tuple(places) for _, places in told.values()}) == 3


def test_clear_votes_and_long_questions_are_not_looked_at_again(runner: Runner, monkeypatch):
    ask = request(None, cache=CacheConfig(None))
    for name, value in (("CLEAR_MARGIN", -1.0), ("MAX_LOOKING_TOKENS", 2), ("CLEAR_WORDS", -1.0)):
        context, _ = read(runner, ask)
        made = dataclasses.replace(answerer_of(runner, context, ask), looks=6)
        with monkeypatch.context() as patch:
            patch.setattr(answering, name, value)
            assert list(made.tokens())
        assert not made.look


def seen_in(runner: Runner) -> torch.Tensor:
    """What a look sees of three pages of a context that a runner read, the last one unfinished."""
    ids = random_ids(600)
    store = runner.new_store(700)
    for start in range(0, len(ids), 128):
        step = StepInput(store, runner.tables, PrefillPass(tiny_hip()), start)
        runner.forward(ids[start : start + 128], step)
    look = SecondLook(runner, tiny_hip(), store, len(ids), SCAFFOLD)
    seen = look.at([0, 3, 9], random_ids(9, seed=5), (FIRST, 7))
    return torch.cat((seen.likelihoods[:, None], seen.attention.flatten(1)), 1)


def test_a_look_sees_the_same_wherever_pages_lie() -> None:
    whole = seen_in(Runner(tiny_model("llama"), backend="reference"))
    torch.testing.assert_close(seen_in(TieredRunner(tiny_model("llama"), 11)), whole)
    torch.testing.assert_close(seen_in(Runner(tiny_model("llama"))), whole, atol=2e-2, rtol=1e-3)
    for kv_dtype, backend in (("fp8_e4m3", "reference"), ("int8", "cpu")):
        quantised = Runner(tiny_model("llama"), kv_dtype, backend=backend)
        assert torch.isfinite(seen_in(quantised)).all()


def test_a_look_at_a_page_of_scaffold_and_text_sees_the_text(runner: Runner) -> None:
    look = SecondLook(runner, tiny_hip(), runner.new_store(PAGE_TOKENS), CONTEXT_TOKENS, SCAFFOLD)
    assert look._rows(0, 0).tolist() == list(range(PAGE_TOKENS))
    # The context ends 40 tokens into page 2, which stands where page 1 of the copy is.
    assert look._rows(2, 1).tolist() == [*range(SCAFFOLD), *range(PAGE_TOKENS, PAGE_TOKENS + 40)]
