"""Scores, recall, and retrieval by words."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from hipcli.engine.answering.passages import reread_prompt
from hipcli.engine.evaluation import grading
from hipcli.engine.evaluation.bm25 import WordIndex
from hipcli.engine.evaluation.case import Probe
from hipcli.engine.evaluation.placing import Placed
from tests.engine.evaluation.tiny import toy_prompts


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("It is 48213.", 1.0),
        ("It is 148213.", 0.0),
        ("48213 and 777", 1.0),
        ("", 0.0),
        ("48_213", 0.0),
    ],
)
def test_a_number_must_stand_alone(answer: str, expected: float) -> None:
    assert grading.score(answer, Probe("?", ("48213",))) == expected


def test_parts_and_rivals() -> None:
    probe = Probe("?", ("kitchen", "office"), rivals=("garden",))
    assert grading.score("The Kitchen.", probe) == 0.5
    assert grading.score("kitchen, office", probe) == 1.0
    assert grading.score("kitchen, office or garden", probe) == 0.0


@pytest.mark.parametrize(
    ("tokens", "pages"),
    [
        ((0, 10), {0}),
        ((60, 80), {1}),
        ((50, 80), {0, 1}),
        ((64, 128), {1}),
        ((63, 65), {0, 1}),
        ((0, 640), {0}),
    ],
)
def test_pages_of_a_needle(tokens: tuple[int, int], pages: set[int]) -> None:
    assert grading.needle_pages(*tokens) == pages


def test_recall() -> None:
    wanted = [frozenset({3}), frozenset({7, 8})]
    assert grading.recall([3, 1, 8], wanted, 1) == 1.0
    assert grading.recall([1, 3, 8], wanted, 1) == 0.0
    assert grading.recall([3, 1, 8], wanted, 2) == 0.5
    assert grading.recall([3, 1, 8], wanted, 24) == 1.0
    assert grading.recall([3], [], 1) is None


def by_hand(pages: list[list[str]], words: list[str]) -> list[float]:
    """The formula, page by page and word by word."""
    mean = sum(map(len, pages)) / len(pages)
    scores = []
    for page in pages:
        score = 0.0
        for word in words:
            n = sum(word in other for other in pages)
            if n:
                idf = math.log(1 + (len(pages) - n + 0.5) / (n + 0.5))
                f = page.count(word)
                score += idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len(page) / mean))
        scores.append(score)
    return scores


def test_bm25_is_its_formula() -> None:
    # One token a character, the text from token 0 on: pages are 64 characters.
    words = (
        "the ship left harbor " * 30 + "a lantern fell on the quay " + "fog and the sea " * 30
    ).split()
    text = " ".join(words)
    places = np.arange(len(text))
    placed = Placed(places.astype(np.int32), 0, 0, np.stack([places, places + 1], axis=1))
    pages: list[list[str]] = [[] for _ in range(-(-len(text) // 64))]
    for match in re.finditer(r"\w+", text):
        pages[match.start() // 64].append(match[0])
    index = WordIndex.of(text, placed)
    question = "Where did the Lantern fall on the quay?"
    expected = by_hand(pages, question.lower().strip("?").split())
    np.testing.assert_allclose(index.scores(question), expected, rtol=1e-12)
    assert index.ranking(question, 0)[0] == int(np.argmax(expected))
    assert index.ranking(question, 130)[-1] >= 2 and 1 not in index.ranking(question, 130)


def test_bm25_finds_a_word_in_a_real_prompt(tmp_path: Path) -> None:
    prompts = toy_prompts(tmp_path)
    text = "Nobody spoke a word.\n" * 80 + "The lantern is at the quay.\n" + "It was quiet.\n" * 80
    placed = prompts.context(text)
    ranking = WordIndex.of(text, placed).ranking("Where is the lantern?", placed.prefix_tokens)
    start, end = placed.tokens_of(text.index("lantern"), text.index("lantern") + 7)
    assert ranking[0] in grading.needle_pages(start, end)
    prompt = reread_prompt(placed.ids, placed.prefix_tokens, ranking, [1], budget_tokens=200)
    assert "lantern" in prompts.tokenizer.decode(prompt)
    assert len(prompt) < placed.prefix_tokens + 300
