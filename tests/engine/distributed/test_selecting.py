"""What every rank finds from all offers is what one rank finds from all scores."""

import threading

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hipcli.engine.distributed.placement import Placement, contiguous, interleaved
from hipcli.engine.distributed.selecting import best_of_all
from hipcli.kernels.select_blocks import select_blocks
from tests.engine.distributed.threads import ThreadGroup


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 5),
    rows=st.integers(1, 3),
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    count=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_best_of_all_is_the_selection_of_one_rank(size, rows, scores, count, seed):
    """Small integers: many scores are equal, and the lower block must win everywhere."""
    generator = torch.Generator().manual_seed(seed)
    owners = torch.randint(0, size, (len(scores),), generator=generator)
    row = torch.tensor(scores, dtype=torch.float32)
    whole = torch.stack([row.roll(shift) for shift in range(rows * 2)]).view(rows, 2, -1)
    whole[whole == 3] = -torch.inf
    whole[whole == 2] = torch.nan
    board, barrier = [None] * size, threading.Barrier(size, timeout=20)
    found = [None] * size

    def run(rank: int) -> None:
        blocks = (owners == rank).nonzero().flatten()
        group = ThreadGroup(rank, size, board, barrier)
        found[rank] = best_of_all(group, whole[:, :, blocks], blocks, count, "cpu")

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    expected = select_blocks(whole, count, backend="cpu")
    assert all(torch.equal(chosen, expected) for chosen in found)


@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    start=st.integers(0, 900),
    length=st.integers(0, 900),
)
def test_every_token_is_on_one_rank(owners, start, length):
    end = min(start + length, len(owners) * 64)
    start = min(start, end)
    tokens = Placement.of(owners, 0, 4).tokens(start, end)
    assert torch.cat(tokens).sort().values.tolist() == list(range(end - start))
    for rank, mine in enumerate(tokens):
        assert all(owners[(start + int(token)) // 64] == rank for token in mine)


def test_named_placements():
    assert interleaved(5, 2) == [0, 1, 0, 1, 0]
    assert contiguous(5, 2) == [0, 0, 0, 1, 1]
    assert contiguous(2, 4) == [0, 2]
