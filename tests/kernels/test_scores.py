"""score_pages, score_blocks and vote: against the formula in fp64, query by query."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.score_blocks import score_blocks
from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.types import PageIndex
from hipcli.kernels.vote import vote

from .builders import Case, Shape, make_case
from .oracles import relative_error, turned

DISTANCE = 37
# block_size_q, query_stride, and a shape whose last query block is short.
CASES = {
    "one query": (1, 1, Shape(1, 111)),
    "strided": (16, 4, Shape(37, 160)),
    "group 3, every query": (8, 1, Shape(20, 150, num_heads=3, num_kv_heads=1)),
    "group 1, head_dim 80": (16, 3, Shape(17, 130, num_heads=2, head_dim=80)),
}


def pooled(case: Case, block_size_q: int, stride: int, block: int, head: int) -> torch.Tensor:
    """fp64 [rows, head_dim]: averaged, turned queries of one query block and KV head."""
    group = case.shape.num_heads // case.shape.num_kv_heads
    end = min((block + 1) * block_size_q, case.shape.num_tokens)
    rows = []
    for first in range(block * block_size_q, end, stride):
        mean = case.q[first : min(first + stride, end)].double().mean(0)
        rows += [turned(mean[head * group + g], DISTANCE, case.rope) for g in range(group)]
    return torch.stack(rows)


def build_index(case: Case, kind: str, dtype: torch.dtype = torch.float32) -> PageIndex:
    """An index of the case's keys."""
    heads, width = case.shape.num_kv_heads, case.shape.head_dim
    index = new_page_index(
        kind, (heads, len(case.kv.page_table), width), 16, dtype=dtype, device=case.q.device
    )
    update_page_index_(
        index,
        case.kv.k_pages,
        case.kv.page_table,
        case.seqlen_k,
        case.shape.seqlen_k,
        backend="reference",
    )
    return index


def assert_same_scores(scores: torch.Tensor, truth: torch.Tensor, budget: float = 1e-6) -> None:
    """Equal where the truth is finite, -inf elsewhere."""
    finite = truth > -torch.inf
    assert (scores[~finite] == -torch.inf).all()
    assert relative_error(scores[finite], truth[finite]) < budget


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_score_pages(backend, kind, name, device):
    size, stride, shape = CASES[name]
    case = make_case(shape, device)
    index = build_index(case, kind)
    blocks = -(-shape.num_tokens // size)
    starts = torch.tensor([80, 0, 96, 64, 16], dtype=torch.int32, device=device)[:blocks]
    scores = score_pages(
        case.q, index, starts, case.rope, DISTANCE, size, stride, 16, backend=backend
    )
    truth = torch.full(scores.shape, -torch.inf, dtype=torch.float64, device=device)
    for block in range(blocks):
        for head in range(shape.num_kv_heads):
            rows = pooled(case, size, stride, block, head)
            for page in range(1, int(starts[block]) // 16):
                summary = index.summaries[head, page].double()
                # The best a key inside the box could do, channel by channel.
                per_channel = (rows[:, None] * summary).max(1).values
                truth[block, head, page] = per_channel.sum(-1).max()
    assert_same_scores(scores, truth)


def test_score_pages_from_fp8(device):
    """Scores from an fp8 index are those of its own stored values."""
    case = make_case(Shape(1, 111), device)
    index = build_index(case, "bounds", torch.float8_e4m3fn)
    stored = index.summaries.float() * index.scales[:, :, None, None]
    plain = dataclasses.replace(index, summaries=stored, scales=None)
    starts = torch.tensor([96], dtype=torch.int32, device=device)
    arguments = (starts, case.rope, DISTANCE, 1, 1, 16)
    truth = score_pages(case.q, plain, *arguments, backend="reference")
    assert_same_scores(score_pages(case.q, index, *arguments, backend="reference"), truth)


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_score_blocks(backend, name, device):
    size, stride, shape = CASES[name]
    case = make_case(shape, device)
    blocks, heads = -(-shape.num_tokens // size), shape.num_kv_heads
    listed = torch.tensor([[1, 2, 4, 5, -1], [2, 3, 4, -1, -1]], dtype=torch.int32, device=device)
    candidates = listed[torch.arange(blocks * heads, device=device) % 2].view(blocks, heads, 5)
    scores = score_blocks(
        case.q, case.kv, candidates, case.rope, DISTANCE, size, 8, stride, backend=backend
    )
    truth = torch.full((blocks, heads, 10), -torch.inf, dtype=torch.float64, device=device)
    for block in range(blocks):
        for head in range(heads):
            rows = pooled(case, size, stride, block, head)
            for place, page in enumerate(candidates[block, head].tolist()):
                if page >= 0:
                    keys = case.keys[page * 16 : (page + 1) * 16, head].double()
                    best = (keys @ rows.T).max(1).values.view(2, 8).max(1).values
                    truth[block, head, 2 * place : 2 * place + 2] = best
    assert_same_scores(scores, truth)


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, 1),
        Shape(3, 111),
        Shape(5, 64, head_dim=80),
        Shape(23, 70, num_heads=3, num_kv_heads=1),
    ],
)
def test_vote(backend, shape, device):
    case = make_case(shape, device)
    scale = 0.3
    page_max, lse = vote(
        case.q, case.kv, case.seqlen_k, case.rope, DISTANCE, scale, backend=backend
    )
    group = shape.num_heads // shape.num_kv_heads
    truth = torch.full(page_max.shape, -torch.inf, dtype=torch.float64, device=device)
    for head in range(shape.num_heads):
        rows = turned(case.q[:, head], DISTANCE, case.rope) * scale
        logits = rows @ case.keys[:, head // group].double().T
        for page, part in enumerate(logits.split(16, dim=1)):
            truth[:, head, page] = part.max(1).values
    assert_same_scores(page_max, truth)
    assert relative_error(lse, truth.logsumexp(-1)) < 1e-6


def test_vote_over_fewer_keys_than_are_stored(device):
    """The question's own keys need not take part."""
    case = make_case(Shape(2, 100), device)
    length = torch.tensor([40], dtype=torch.int32, device=device)
    arguments = (case.kv, length, case.rope, DISTANCE, 0.3)
    page_max, lse = vote(case.q, *arguments, backend="triton")
    truth, true_lse = vote(case.q, *arguments, backend="reference")
    assert_same_scores(page_max, truth)
    assert relative_error(lse, true_lse) < 1e-6


def test_refusals(device):
    case = make_case(Shape(16, 60), device)
    index = build_index(case, "bounds")
    starts = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="distance: expected 0..511"):
        score_pages(case.q, index, starts, case.rope, 512, 16, 4, 16)
    with pytest.raises(ValueError, match="window_starts: expected shape \\[2\\]"):
        score_pages(case.q, index, starts, case.rope, 5, 8, 4, 16)
    with pytest.raises(ValueError, match="window_starts: the last dimension must be contiguous"):
        score_pages(case.q, index, starts.expand(2), case.rope, 5, 8, 4, 16)
    with pytest.raises(ValueError, match="block_size_k: expected a divisor of the page size 16"):
        candidates = torch.zeros(1, 2, 4, dtype=torch.int32, device=device)
        score_blocks(case.q, case.kv, candidates, case.rope, 5, 16, 12, 4)
    with pytest.raises(ValueError, match="q: expected 1 to 64 tokens, received 65"):
        many = make_case(Shape(65, 70), device)
        vote(many.q, many.kv, many.seqlen_k, many.rope, 5, 1.0)
    with pytest.raises(ValueError, match="softmax_scale: expected a positive number"):
        vote(case.q, case.kv, case.seqlen_k, case.rope, 5, -1.0)
