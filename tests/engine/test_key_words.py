"""Key words: which words of a question the votes follow to where they stand."""

import dataclasses

import numpy as np
import pytest
import torch

from hipcli.engine.answering import answerer as answering
from hipcli.engine.answering.key_words import KeyWords, of_all_words, worth_a_look
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.answering.word_match import Reader, spellings
from hipcli.engine.config import CacheConfig
from hipcli.engine.forward.runner import Runner
from hipcli.engine.store.pages import PAGE_TOKENS
from tests.engine.test_sessions import answerer_of, read, request
from tests.engine.tiny import tiny_model

PAGES = 40


def encode(text: str) -> list[int]:
    """A token for each character."""
    return [ord(letter) for letter in text]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def context(places: dict[str, list[int]]) -> np.ndarray:
    """Pages of dashes, in the middle of some of which words stand."""
    ids = np.full(PAGES * PAGE_TOKENS, ord("-"), dtype=np.int32)
    for word, pages in places.items():
        for page in pages:
            start = page * PAGE_TOKENS + 20
            ids[start : start + len(word) + 1] = encode(f" {word}")
    return ids


def keys(question: str, places: dict[str, list[int]], kept: np.ndarray | None = None) -> KeyWords:
    words = spellings(question, encode)
    return KeyWords.of(encode(question), decode, words, context(places), kept)


def word_votes(question: str, given: dict[str, dict[int, float]]) -> torch.Tensor:
    """Votes of the last letters of some words of a question, by page."""
    votes = torch.zeros(len(question), PAGES)
    for word, pages in given.items():
        row = question.index(word) + len(word) - 1
        for page, count in pages.items():
            votes[row, page] = count
    return votes


def test_words_are_the_tokens_that_spell_them() -> None:
    found = keys("The clock, the tower?", {"clock": [3], "tower": [7, 8]})
    assert found.tokens == [[0, 1, 2, 11, 12, 13], [4, 5, 6, 7, 8], [15, 16, 17, 18, 19]]
    assert found.present.shape == (3, PAGES)
    assert [np.flatnonzero(row).tolist() for row in found.present] == [[], [3], [7, 8]]


def test_a_key_is_rare_and_its_votes_follow_it() -> None:
    question = "Which figure has the clock"
    places = {"clock": [3, 9], "has": [5], "which": list(range(10, 30))}
    votes = {
        "clock": {3: 1.0, 9: 1.0, 20: 0.5},
        # Looked for everywhere, found nowhere; everywhere; elsewhere than where it stands.
        "figure": {30: 9.0},
        "Which": {page: 1.0 for page in range(10, 30)},
        "has": {6: 3.0, 5: 0.1},
    }
    strengths = keys(question, places).strengths(word_votes(question, votes))
    assert strengths[3] == strengths[9] == pytest.approx(2.0 / 2.5)
    assert strengths[5] == pytest.approx(0.1 / 3.1)
    assert strengths[[6, 10, 30]].tolist() == [0, 0, 0]
    kept = np.array([1, 3, 5, 30])
    there = keys(question, places, kept).strengths(word_votes(question, votes)[:, kept])
    assert there.argmax() == 1 and there[3] == 0


def test_without_a_key_no_page_counts_more() -> None:
    question = "Which figure"
    strengths = keys(question, {}).strengths(word_votes(question, {"figure": {30: 9.0}}))
    assert strengths.tolist() == [0.0] * PAGES


def test_several_words_say_more_than_one_with_many_votes() -> None:
    votes = torch.zeros(3, 4)
    votes[0, 0], votes[0, 1] = 1.0, 0.8
    votes[1, 1], votes[2, 1] = 0.1, 0.1
    assert of_all_words(votes).argsort(descending=True).tolist()[:2] == [1, 0]


def test_pages_with_the_key_and_more_are_looked_at() -> None:
    question = "Which figure has the clock"
    pages = list(range(3, 7))
    given = {
        "figure": {page: 3.0 for page in range(10, 20)} | {5: 0.3},
        "clock": {page: 1.1 for page in pages} | {5: 1.0},
    }
    ballot = Ballot(PAGES * PAGE_TOKENS, 64, (0, len(question)))
    ballot.word_votes = word_votes(question, given)
    span = 0, PAGES * PAGE_TOKENS
    assert not set(ballot.best(*span, 8)) & set(pages)
    by_votes, by_words = worth_a_look(ballot, keys(question, {"clock": pages}), span, 4)
    assert by_words[0] == 5
    # What they weigh stays when a look is joined to it.
    assert ballot.votes()[5] == pytest.approx(1.3 * np.e, rel=1e-4)
    ballot.look_again([by_votes[0], 5], torch.tensor([0.0, 1.0]))
    assert ballot.best(*span, 1) == [5]


def test_an_answerer_looks_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question's tokens are letters, one of which stands on one page alone."""
    monkeypatch.setattr(answering, "CLEAR_MARGIN", float("inf"))
    monkeypatch.setattr(answering, "CLEAR_WORDS", float("inf"))
    runner, looked = Runner(tiny_model("llama")), []
    see = answering.SecondLook.at

    def noted(self, pages, *rest):
        looked.append(pages)
        return see(self, pages, *rest)

    monkeypatch.setattr(answering.SecondLook, "at", noted)
    ask = request(None, cache=CacheConfig(None))
    start, end = ask.own_words

    def spelt(ids: list[int]) -> str:
        return " ".join(chr(0x4E00 + token) for token in ids)

    def tokens(text: str) -> list[int]:
        return [ord(letter) - 0x4E00 for letter in text.replace(" ", "") if ord(letter) >= 0x4E00]

    reader = Reader(spelt(ask.question_ids[start:end]), tokens, spelt)
    for words in ((), spellings(reader.question, tokens)):
        stored, _ = read(runner, ask)
        made = dataclasses.replace(
            answerer_of(runner, stored, ask), looks=4, words=words, reader=reader
        )
        assert list(made.tokens()) and "4 best pages" in made.look
    assert [len(set(pages)) for pages in looked] == [4, 4]
