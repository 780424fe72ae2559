"""select_step_ against its five operators, one after the other in plain PyTorch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.select_step import select_step_
from hipcli.kernels.types import SelectionSizes

from .builders import Case, Shape, make_case

ONE = SelectionSizes(37, 1, 8, 1, 16, candidate_pages=5, num_selected=4)
CASES = {
    "one query": (Shape(1, 150), ONE),
    "its page is new": (Shape(1, 145), ONE),
    "group 3, head_dim 80": (Shape(1, 130, num_heads=3, num_kv_heads=1, head_dim=80), ONE),
    "fewer blocks than wanted": (Shape(1, 150), dataclasses.replace(ONE, num_selected=32)),
    "a block of queries": (
        Shape(20, 150),
        dataclasses.replace(ONE, block_size_q=16, query_stride=4),
    ),
}


def stale_index(case: Case, kind: str):
    """An index of all tokens but the case's queries; poison where they will be."""
    shape = case.shape
    size = (shape.num_kv_heads, len(case.kv.page_table), shape.head_dim)
    index = new_page_index(kind, size, 16, dtype=torch.float32, device=case.q.device)
    index.summaries.fill_(1e9)
    before = case.seqlen_k - shape.num_tokens
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, before, int(before), backend="reference"
    )
    return index


@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_select_step(name, kind, device):
    shape, sizes = CASES[name]
    case = make_case(shape, device)
    blocks = -(-shape.num_tokens // sizes.block_size_q)
    starts = torch.tensor([112, 96][:blocks], dtype=torch.int32, device=device)
    counters = torch.zeros(64, dtype=torch.int32, device=device)
    results = []
    for backend in ("reference", "triton"):
        index = stale_index(case, kind)
        chosen = select_step_(
            case.q, case.kv, index, starts, case.seqlen_k, case.rope, sizes,
            counters=counters, backend=backend,
        )  # fmt: skip
        results.append((chosen.tolist(), index.summaries))
    assert results[0][0] == results[1][0]
    # The pages of the sequence; no one reads beyond.
    pages = -(-shape.seqlen_k // 16)
    torch.testing.assert_close(results[0][1][:, :pages], results[1][1][:, :pages])
    assert not counters.any()


def test_a_plan_that_selects_nothing(device):
    """window_starts of 0: no page is a candidate, no block chosen."""
    case = make_case(Shape(1, 150), device)
    starts = torch.zeros(1, dtype=torch.int32, device=device)
    chosen = select_step_(
        case.q, case.kv, stale_index(case, "bounds"), starts, case.seqlen_k, case.rope, ONE,
        backend="triton",
    )  # fmt: skip
    assert (chosen == -1).all()


def test_refusals(device):
    case = make_case(Shape(1, 60), device)
    index = stale_index(case, "bounds")
    starts = torch.zeros(1, dtype=torch.int32, device=device)
    arguments = (case.q, case.kv, index, starts, case.seqlen_k, case.rope)
    with pytest.raises(ValueError, match="block_size_k: expected to fit the page size 16"):
        select_step_(*arguments, dataclasses.replace(ONE, block_size_k=12))
    with pytest.raises(ValueError, match="num_selected: expected an int of at least 1"):
        select_step_(*arguments, dataclasses.replace(ONE, num_selected=0))
    with pytest.raises(ValueError, match="counters: expected at least 2, received 1"):
        select_step_(*arguments, ONE, counters=torch.zeros(1, dtype=torch.int32, device=device))
