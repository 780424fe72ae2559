"""Guesses at what was meant."""

import pytest

from hipcli.engine.nearest import nearest

OPTIONS = [
    "--model",
    "--models-dir",
    "--max-new-tokens",
    "--temperature",
    "--gpus",
    "--gpu-memory",
    "--json",
    "--jsonl",
    "--name",
    "--cite",
    "--budget-tokens",
    "--window-tokens",
    "--verbose",
    "--version",
    "--output",
    "--method",
    "--no-cache",
]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--methd", "--method"),
        ("--verison", "--version"),
        ("--nmae", "--name"),
        ("--windw-tokns", "--window-tokens"),
        ("--max_new_tokens", "--max-new-tokens"),
        ("--Model", "--model"),
        ("--max-tokens", "--max-new-tokens"),
        ("--temp", "--temperature"),
        ("--gpu", "--gpus"),
        ("--win-tok", "--window-tokens"),
    ],
)
def test_what_is_near(word: str, meant: str) -> None:
    assert nearest(word, OPTIONS) == meant


@pytest.mark.parametrize(
    "word", ["--bogus", "--tokens", "--stream", "--stop", "--top-p", "--quote", "--x", "--", ""]
)
def test_a_guess_that_is_far_fetched_is_not_made(word: str) -> None:
    assert nearest(word, OPTIONS) is None


def test_short_words() -> None:
    assert nearest("hpi", ("dense", "hip")) == "hip"
    assert nearest("of", ("auto", "on", "off")) == "off"
    assert nearest("z", ("a",)) is None
    assert nearest("hip", ()) is None
