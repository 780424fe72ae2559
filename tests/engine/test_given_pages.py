"""Pages given to an answer: where they stand, on the host and where only a device knows."""

import pytest
import torch

from hipcli.engine.answering.decoding import generate
from hipcli.engine.answering.sampler import Sampler
from hipcli.engine.answering.vote import Ballot
from hipcli.engine.forward.runner import Runner
from hipcli.engine.methods.geometry import Geometry
from hipcli.engine.passes import AnswerPass
from hipcli.engine.passes.given import GivenBlocks, GivenPages
from hipcli.engine.store.layout import PAGE_TOKENS
from tests.engine.test_device_path import after_prompt
from tests.engine.tiny import tiny_hip, tiny_model

SINKS = PAGE_TOKENS
# Sinks, a page of the window, and one that lies behind what they stand before.
PAGES = torch.tensor([5, 0, 3, 4, 9, 2])


@pytest.mark.parametrize(
    ("before", "window_page", "blocks", "near_page"),
    [
        (0, 4, [3, 2], 4),
        (8, 4, [6, 7, 5, 3, 4, 2], 8),
        (8, 7, [7, 5, 3, 4, 2], 8),
        (8, 11, [5, 3, 4, 2], 11),
    ],
)
def test_given_pages_stand_behind_the_context(
    before: int, window_page: int, blocks: list[int], near_page: int
) -> None:
    given = GivenPages(PAGES, before)
    start = window_page * PAGE_TOKENS
    assert given.blocks(start, SINKS).tolist() == blocks
    assert given.near_start(start) == near_page * PAGE_TOKENS
    assert given.near_start(0) == 0


@pytest.mark.parametrize("before", [0, 8])
def test_a_device_arranges_them_as_the_host_does(before: int) -> None:
    given = GivenPages(PAGES, before)
    on_device = GivenBlocks(given, 2 * PAGE_TOKENS, SINKS, 3)
    for page in (0, *range(2, 14)):
        start = page * PAGE_TOKENS
        on_device.begin(torch.tensor([start], dtype=torch.int32))
        assert int(on_device.near_starts) == given.near_start(start)
        if start:
            expected = given.blocks(start, SINKS).tolist()
            for row in on_device.blocks[0].tolist():
                assert row[: len(expected)] == expected
                assert set(row[len(expected) :]) <= {-1}


@pytest.mark.parametrize("dense_tokens", [0, 100, 900])
@pytest.mark.parametrize("position", [0, 64, 700, 2000])
def test_the_first_window_that_will_start(dense_tokens: int, position: int) -> None:
    geometry = Geometry(64, 128, dense_tokens)
    starts = [geometry.window_start(at) for at in range(position, 2200)]
    assert geometry.first_window_start(position) == next(start for start in starts if start)


@pytest.fixture(scope="module")
def host() -> Runner:
    return Runner(tiny_model("llama"))


@pytest.mark.parametrize("prompt", [500, 512, 575])
def test_decoder_generates_the_cpus_tokens(host: Runner, prompt: int) -> None:
    """From before the question's first page until the window has left the context behind."""
    tokens = []
    for runner in (host, Runner(tiny_model("llama"), backend="reference")):
        method = tiny_hip()
        store, logits = after_prompt(runner, method, prompt, prompt + 200)
        attention = AnswerPass(method, torch.tensor([4, 2, 3, 6]), prompt // PAGE_TOKENS)
        tokens.append(list(generate(runner, store, attention, Sampler(0, 0), logits, 200)))
    assert tokens[0] == tokens[1]


def test_the_best_page_stands_last() -> None:
    votes = Ballot(10 * PAGE_TOKENS, 8, (0, 1))
    votes.word_votes = torch.tensor([[0.0, 1, 9, 0, 0, 8, 0, 10, 0, 0]])
    # Each with its right neighbour: 7 and 8, 2 and 3, 5 and 6; what is joined stays in order.
    assert votes.pages(0, 10 * PAGE_TOKENS, 4 * PAGE_TOKENS).tolist() == [2, 3, 7, 8]
    assert votes.pages(0, 10 * PAGE_TOKENS, 6 * PAGE_TOKENS).tolist() == [2, 3, 5, 6, 7, 8]
