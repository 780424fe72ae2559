"""Votes for pages: who may be voted for, what words add, and what a second round finds."""

import numpy as np
import pytest
import torch

from hipcli.engine.answering.vote import Ballot
from hipcli.engine.answering.word_match import MAX_WORDS, Reader, coverage, spellings
from hipcli.engine.config import CacheConfig
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
from hipcli.engine.methods.selection import voted_pages, with_pages
from hipcli.engine.passes import QuestionPass
from hipcli.engine.reading.context import Context, ContextReader
from hipcli.engine.store.pages import PAGE_TOKENS, KVStore
from tests.engine.test_sessions import (
    CHUNK,
    CONTEXT_TOKENS,
    IDENTITY,
    answerer_of,
    request,
)
from tests.engine.tiny import random_ids, tiny_hip, tiny_model

PAGES = 6


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(tiny_model("llama"))


def ballot(**fields) -> Ballot:
    usual = {"context_tokens": PAGES * PAGE_TOKENS, "distance_tokens": 8, "own_words": (0, 1)}
    return Ballot(**(usual | fields))


def scores(*rows: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Page maxima of one head, a row a token, and their log-sum-exp."""
    page_max = torch.tensor(rows).unsqueeze(1)
    return page_max, torch.logsumexp(page_max, -1)


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def context(*pages: str) -> np.ndarray:
    return np.array(letters("".join(page.ljust(PAGE_TOKENS, ".") for page in pages)), np.int32)


def test_a_word_votes_by_share_times_lift_over_the_scaffold() -> None:
    votes = ballot()
    page_max, lse = scores([0, 0, 3, 0, 0, 0], [0, 0, 0, 0, 2, 0])
    votes.count(0, page_max, lse)
    share = (page_max - lse.unsqueeze(-1)).exp()[:, 0]
    lift = (share[0].log() - (1 / PAGES + share[1]).log()).clamp(min=0)
    torch.testing.assert_close(votes.votes(), share[0] * lift)
    assert votes.ranking(0, PAGES * PAGE_TOKENS)[0] == 2


def test_what_the_scaffold_attends_as_well_gets_no_votes() -> None:
    votes = ballot()
    votes.count(0, *scores([0, 3, 2, 0, 0, 0], [0, 3, 0, 0, 0, 0]))
    assert votes.ranking(0, PAGES * PAGE_TOKENS)[0] == 2


def test_excluded_pages_get_no_votes() -> None:
    votes = ballot(excluded=(2,))
    votes.count(0, *scores([0, 0, 3, 0, 2, 0]))
    assert votes.votes()[2] == 0
    assert votes.ranking(0, PAGES * PAGE_TOKENS)[0] == 4


def test_of_a_passage_the_words_near_those_asked_for_count() -> None:
    """40 words: the first votes for page 1, the last for page 3; the question attends one."""
    words = [[0, 3, 0, 0, 0, 0], *[[0.0] * PAGES] * 38, [0, 0, 0, 3, 0, 0]]
    page_max, lse = scores(*words, [0.0] * PAGES, [0.0] * PAGES)
    for attended, page in ((4, 1), (35, 3)):
        votes = ballot(own_words=(0, 40), asked=(41, 42))
        votes.count(0, page_max, lse)
        share = torch.full((42, 1, 40), -20.0)
        share[41, 0, attended] = -0.1
        votes.weigh(share)
        assert votes.ranking(0, PAGES * PAGE_TOKENS)[0] == page


def test_rounds_take_turns() -> None:
    first, second = ballot(), ballot()
    first.count(0, *scores([0, 5, 4.8, 4.6, 0, 0]))
    second.count(0, *scores([0, 0, 5, 0, 4.6, 4.8]))
    first.later.append(second)
    order = first.ranking(0, PAGES * PAGE_TOKENS)
    assert order[:4] == [1, 2, 5, 3]
    assert sorted(order) == list(range(PAGES))
    evidence = first.evidence(0, PAGES * PAGE_TOKENS, 4)
    assert [passage.start_token // PAGE_TOKENS for passage in evidence] == order[:4]


def test_a_round_names_the_passages_that_voted_first() -> None:
    first, second = ballot(), ballot(asked=(1, 2), passages=[5, 2], excluded=[2, 5])
    first.count(0, *scores([0.0, 3, 1, 0, 2, 0]))
    second.count(0, *scores([4.0, 0, 9, 0, 0, 9]))
    first.later = [second]
    assert first.ranking(0, PAGES * PAGE_TOKENS)[:5] == [1, 5, 4, 2, 0]


def test_the_order_of_the_words_alone() -> None:
    votes = ballot(coverage=np.array([0.2, 0, 0.7, 0.2, 0, 0], "f4"))
    votes.count(0, *scores([0.0, 9, 0, 8.5, 0, 0]))
    assert votes.by_words(0, PAGES * PAGE_TOKENS) == [2, 3, 0]
    assert votes.by_words(PAGE_TOKENS, PAGES * PAGE_TOKENS) == [2, 3]
    votes.coverage = None
    assert votes.by_words(0, PAGES * PAGE_TOKENS) == []


def leading(question: str, *pages: str, of: list[int]) -> list[str]:
    reader = Reader(question, letters, lambda ids: "".join(map(chr, ids)))
    ids = context(*pages)
    found = reader.leading_words(ids, of, (0, len(ids)))
    return ["".join(map(chr, word[0])).strip() for word in found]


def test_words_beside_the_asked_one_lead_on() -> None:
    pages = ("It rained. Zadie took the trombone. Omar slept.", "Zadie went away.", "Omar sang.")
    question = "Where is the trombone?"
    assert leading(question, *pages, of=[0]) == ["zadie", "took"]
    assert leading(question, *pages, of=[1, 2]) == []
    # In whichever of the pages, and over the border of one.
    split = ("." * (PAGE_TOKENS - 12) + "\nZadie took ", "the trombone.")
    assert leading(question, *split, of=[1]) == ["zadie", "took"]


def test_votes_of_a_pruned_context_name_pages_of_the_whole_one() -> None:
    kept = np.array([0, 3, 9])
    votes = ballot(context_tokens=3 * PAGE_TOKENS, kept_pages=kept, coverage=np.zeros(10, "f4"))
    votes.count(0, *scores([0, 3.9, 4]))
    assert votes.ranking(0, 10 * PAGE_TOKENS)[:2] == [9, 3]
    assert votes.pages(0, 10 * PAGE_TOKENS, PAGE_TOKENS).tolist() == [2]


@pytest.mark.parametrize(
    ("first_token", "kept", "page"),
    [
        (0, None, None),
        (64, None, None),
        (70, None, 1),
        (9, np.array([0, 3]), 0),
        (70, np.array([0, 3]), None),
    ],
)
def test_the_page_with_scaffold_and_text(first_token, kept, page) -> None:
    assert ballot(first_token=first_token, kept_pages=kept).first_page == page


def test_words_raise_a_page_that_the_heads_put_second() -> None:
    words = np.array([0, 0, 0.2, 0, 0.9, 0], dtype=np.float32)
    page_max, lse = scores([0, 0, 3, 0, 2.5, 0])
    plain, weighed = ballot(), ballot(coverage=words)
    for votes in (plain, weighed):
        votes.count(0, page_max, lse)
    assert plain.ranking(0, PAGES * PAGE_TOKENS)[0] == 2
    assert weighed.ranking(0, PAGES * PAGE_TOKENS)[0] == 4


def test_coverage_counts_rare_words_more() -> None:
    ids = context("the red harbor", "the boat", "the sea", "a harbour", "the end")
    found = coverage(ids, spellings("the harbor", letters))
    assert found.argmax() == 0
    assert found[0] == pytest.approx(1)
    assert 0 < found[1] < 0.5
    assert found[3] < 0.1


def test_absent_words_leave_little_to_the_others() -> None:
    ids = context("who is there", "nobody", "who knows", "a boat")
    found = coverage(ids, spellings("who repairs footwear", letters))
    assert found.max() < 0.3


def test_words_are_found_in_other_letters_and_next_to_a_border() -> None:
    ids = context("x" * 60 + "Har", "bor", "...", "...", "...")
    assert coverage(ids[:-1], spellings("harbor", letters)).tolist() == [0, 0, 0, 0, 0]
    whole = np.array(letters("." * 60 + "HARBOR" + "." * 200), np.int32)
    found = coverage(whole, spellings("harbor", letters))
    assert found[:2].tolist() == [1, 1]
    assert found[3] < 0.1


@pytest.mark.parametrize("question", ["", "?!", " \n"])
def test_a_question_without_words_covers_nothing(question: str) -> None:
    assert not coverage(context("text"), spellings(question, letters)).any()


def test_a_long_question_counts_its_first_words() -> None:
    words = spellings(" ".join(f"w{number}" for number in range(500)), letters)
    assert len(words) == MAX_WORDS


def test_given_pages_join_selected_blocks() -> None:
    blocks = torch.tensor([[[3, 12, -1], [1, 20, 30]]], dtype=torch.int32)
    joined = with_pages(blocks, torch.tensor([4]), 32)
    assert joined.tolist() == [[[3, 8, 9, 12, -1], [1, 8, 9, 20, 30]]]


class Shown(Ballot):
    """A ballot that keeps what it is given."""

    def count(self, layer: int, page_max: torch.Tensor, lse: torch.Tensor) -> None:
        self.__dict__.setdefault("seen", []).append(page_max.clone())
        super().count(layer, page_max, lse)


def test_scaffold_keys_of_a_mixed_page_are_not_voted_for(runner: Runner) -> None:
    """Of a page that begins with scaffold only the keys behind it count, and they all do."""
    store = stored(runner, request(None, cache=CacheConfig(None)))
    seen = {}
    for first_token in (0, 40):
        votes = Shown(CONTEXT_TOKENS, 16, (0, 5), first_token=first_token)
        tail = store.tail()
        step = StepInput(
            store, runner.tables, QuestionPass(tiny_hip(), votes, 128, 16), store.length
        )
        runner.logits(torch.arange(5), step)
        store.rewind(tail)
        seen[first_token] = votes.seen[0]
    whole, behind = seen[0], seen[40]
    torch.testing.assert_close(whole[:, :, 1:], behind[:, :, 1:])
    assert (behind[:, :, 0] <= whole[:, :, 0] + 1e-5).all()
    lower = behind[:, :, 0] < whole[:, :, 0] - 1e-5
    assert lower.any()
    assert not lower.all()


def stored(runner: Runner, ask, spare: int = 256) -> KVStore:
    """The context in a store with room for passages that vote."""
    reader = ContextReader(runner, tiny_hip(), ask, IDENTITY, CHUNK, spare)
    stream = reader.read()
    while True:
        try:
            next(stream)
        except StopIteration as stop:
            return stop.value.store


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_answer_in_every_mode(runner: Runner, mode: str, rounds: int) -> None:
    ask = request(None, answer=mode, rounds=rounds, cache=CacheConfig(None))
    answerer = answerer_of(runner, Context(stored(runner, ask)), ask)
    assert len(list(answerer.tokens())) == 12
    places = [passage.start_token for passage in answerer.evidence]
    assert len(places) == len(set(places))


def test_pages_for_a_budget() -> None:
    assert [voted_pages(budget) for budget in (64, 128, 2048)] == [0, 1, 16]


@pytest.mark.parametrize("mode", ["attend", "reread"])
@pytest.mark.parametrize("length", [10, 64, 100])
def test_more_rounds_than_pages_end_early(runner: Runner, mode: str, length: int) -> None:
    ask = request(None, length=length, answer=mode, rounds=9, cache=CacheConfig(None))
    answerer = answerer_of(runner, Context(stored(runner, ask)), ask)
    assert len(list(answerer.tokens())) == 12


@pytest.mark.parametrize("mode", ["attend", "share", "reread"])
def test_a_question_longer_than_the_window(runner: Runner, mode: str) -> None:
    """Its beginning lies between the context and the window of its last tokens."""
    long = random_ids(256 + 4 * 128, seed=8).tolist()
    ask = request(None, question_ids=long, answer=mode, cache=CacheConfig(None))
    answerer = answerer_of(runner, Context(stored(runner, ask, len(long) + 64)), ask)
    assert len(list(answerer.tokens())) == 12


def test_more_rounds_leave_the_question_of_attend_as_it_was(runner: Runner) -> None:
    """It runs again behind the context, and selects by the same votes and words."""
    logits = []
    for rounds in (1, 2):
        ask = request(None, answer="attend", rounds=rounds, cache=CacheConfig(None))
        answerer = answerer_of(runner, Context(stored(runner, ask)), ask)
        ids = ask.context_ids
        answerer.words = [((int(ids[place]),),) for place in (400, 410, 420)]
        logits.append(answerer.start()[0])
        assert answerer.store.length == CONTEXT_TOKENS + len(ask.question_ids)
    torch.testing.assert_close(logits[1], logits[0])
