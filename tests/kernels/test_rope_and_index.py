"""RoPE and the page index: reference against fp64, kernels against the reference."""

from __future__ import annotations

import pytest
import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.rope import rope

from .builders import Shape, make_case, rope_tables
from .oracles import relative_error, turned


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("head_dim, rotary_dim", [(64, 64), (80, 80), (80, 32), (96, 96)])
def test_rope(backend, head_dim, rotary_dim, device):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 3, head_dim, generator=generator).to(device)
    tables = rope_tables(64, rotary_dim, device)
    positions = torch.tensor([0, 5, 63, 1, 1, 20, 40], device=device)
    out = rope(x, positions, tables, backend=backend)
    for n, position in enumerate(positions.tolist()):
        assert relative_error(out[n], turned(x[n], position, tables)) < 1e-6


def test_rope_leaves_views_alone(device):
    """Queries are often a slice of a joint projection."""
    joint = torch.randn(5, 8, 64).to(device)
    tables = rope_tables(8, 64, device)
    positions = torch.arange(5, dtype=torch.int32, device=device)
    out = rope(joint[:, 2:6], positions, tables, backend="triton")
    assert relative_error(out, rope(joint, positions, tables, backend="reference")[:, 2:6]) < 1e-6


def plain_summary(case, page: int, kind: str) -> torch.Tensor:
    """fp64 [num_kv_heads, S, head_dim] of one page of a case."""
    size = case.shape.page_size
    keys = case.keys[page * size : (page + 1) * size].double()
    if kind == "bounds":
        return torch.stack((keys.min(0).values, keys.max(0).values), dim=1)
    return keys.mean(0)[:, None]


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("kind", ["bounds", "mean"])
@pytest.mark.parametrize("seqlen_k, head_dim", [(1, 64), (63, 64), (65, 80)])
def test_page_index_build(backend, kind, seqlen_k, head_dim, device):
    case = make_case(Shape(1, seqlen_k, head_dim=head_dim), device)
    pages = len(case.kv.page_table)
    index = new_page_index(kind, (2, pages, head_dim), 16, dtype=torch.float32, device=device)
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, seqlen_k, backend=backend
    )
    for page in range(-(-seqlen_k // 16)):
        truth = plain_summary(case, page, kind)
        assert relative_error(index.summaries[:, page], truth) < 1e-6


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_page_index_update_touches_the_newest_pages_alone(backend, device):
    case = make_case(Shape(1, 70), device)
    pages = len(case.kv.page_table)
    index = new_page_index("bounds", (2, pages, 64), 16, dtype=torch.float32, device=device)
    index.summaries.fill_(7.0)
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 8, backend=backend
    )
    # Tokens 62..69 lie in pages 3 and 4.
    assert (index.summaries[:, [0, 1, 2, 5, 6]] == 7.0).all()
    for page in (3, 4):
        assert relative_error(index.summaries[:, page], plain_summary(case, page, "bounds")) < 1e-6


@pytest.mark.parametrize("kind", ["bounds", "mean"])
def test_page_index_in_fp8(kind, device):
    """Three bits of mantissa: no value is off by more than 1/16 of itself, tiny ones apart."""
    case = make_case(Shape(1, 64), device)
    pages = len(case.kv.page_table)
    index = new_page_index(kind, (2, pages, 64), 16, dtype=torch.float8_e4m3fn, device=device)
    update_page_index_(
        index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 64, backend="reference"
    )
    stored = index.summaries.float() * index.scales[:, :, None, None]
    for page in range(4):
        truth = plain_summary(case, page, kind)
        floor = truth.abs().max() * 2**-14
        assert ((stored[:, page] - truth).abs() <= truth.abs() / 16 + floor).all()


def test_page_index_refusals(device):
    with pytest.raises(ValueError, match="kind: expected one of bounds, mean, received 'max'"):
        new_page_index("max", (2, 4, 64), 16, dtype=torch.float32, device=device)
    with pytest.raises(TypeError, match="summaries: expected dtype"):
        new_page_index("mean", (2, 4, 64), 16, dtype=torch.float64, device=device)
    case = make_case(Shape(1, 20), device)
    index = new_page_index("mean", (2, 4, 64), 64, dtype=torch.float32, device=device)
    with pytest.raises(ValueError, match="k_pages: expected shape"):
        update_page_index_(index, case.kv.k_pages, case.kv.page_table, case.seqlen_k, 20)
