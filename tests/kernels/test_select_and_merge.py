"""select_blocks by the sets it must choose, merge_partials against one softmax over all keys."""

from __future__ import annotations

import pytest
import torch

from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.select_blocks import select_blocks

from .oracles import relative_error

BACKENDS = pytest.mark.parametrize("backend", ["reference", "triton"])


def best(row: list[float], k: int) -> list[int]:
    """Positions of the k largest finite scores, the lower position first among equals."""
    usable = [i for i, score in enumerate(row) if score > float("-inf")]
    return sorted(sorted(usable, key=lambda i: (-row[i], i))[:k])


@BACKENDS
@pytest.mark.parametrize("n, k", [(1, 1), (63, 7), (111, 111), (65, 100), (1000, 128)])
def test_select_random(backend, n, k, device):
    scores = torch.randn(3, 2, n, generator=torch.Generator().manual_seed(n)).to(device)
    chosen = select_blocks(scores, k, backend=backend)
    rows, lists = scores.flatten(0, 1).tolist(), chosen.flatten(0, 1).tolist()
    for row, listed in zip(rows, lists, strict=True):
        wanted = best(row, k)
        assert listed == wanted + [-1] * (k - len(wanted))


@BACKENDS
def test_select_hurtful_rows(backend, device):
    """Equal scores, both zeros, denormals, huge ranges, nothing to choose, NaN."""
    inf, nan = float("inf"), float("nan")
    rows = [
        [1.0] * 16,
        [0.0, -0.0] * 8,
        [-1e-40, 1e-40, -1e38, 3e38] * 4,
        [-inf] * 16,
        [nan] * 8 + [-5.0, -inf, -5.0, nan] + [-inf] * 4,
        [-3.0, -2.0, -1.0, -1.0, -1.0, -1.0] + [-4.0] * 10,
    ]
    scores = torch.tensor(rows, device=device)[None]
    chosen = select_blocks(scores, 3, backend=backend)
    for row, listed in zip(rows, chosen[0].tolist(), strict=True):
        wanted = best(row, 3)
        assert listed == wanted + [-1] * (3 - len(wanted))


@BACKENDS
def test_select_maps_candidates_to_blocks(backend, device):
    candidates = torch.tensor([[[3, 9, 20, -1]]], dtype=torch.int32, device=device)
    scores = torch.tensor([[[0.0, 5, 1, 4, 9, 2, -9, -9]]], device=device)
    scores[..., 6:] = -torch.inf
    chosen = select_blocks(scores, 4, candidates, backend=backend)
    assert chosen.tolist() == [[[7, 19, 40, 41]]]


def test_select_in_chunks(device):
    """Rows longer than a program holds are chosen from twice; the result is the same."""
    from hipcli.kernels.select_blocks.triton_impl import launch

    scores = torch.randn(2, 2, 150, generator=torch.Generator().manual_seed(5)).to(device)
    scores[0, 0, 20:] = -torch.inf
    scores[1, 1] = scores[1, 1].round()
    truth = select_blocks(scores, 24, backend="reference")
    assert launch(scores, 24, None, chunk=32).tolist() == truth.tolist()


def test_select_refusals(device):
    scores = torch.zeros(1, 1, 8, device=device)
    with pytest.raises(ValueError, match="num_selected: expected an int of at least 1"):
        select_blocks(scores, 0)
    with pytest.raises(TypeError, match="scores: expected dtype float32"):
        select_blocks(scores.half(), 1)
    with pytest.raises(ValueError, match="their number 3 must divide the 8 scores"):
        select_blocks(scores, 1, torch.zeros(1, 1, 3, dtype=torch.int32, device=device))


@BACKENDS
@pytest.mark.parametrize("parts, head_dim", [(1, 64), (3, 80), (40, 64)])
def test_merge_is_one_softmax(backend, parts, head_dim, device):
    generator = torch.Generator().manual_seed(parts)
    logits = torch.randn(2, 3, parts * 4, generator=generator).double() * 4
    values = torch.randn(parts * 4, head_dim, generator=generator).double()
    split = logits.unflatten(-1, (parts, 4))
    outs = torch.einsum("nhpk,pkd->pnhd", split.softmax(-1), values.unflatten(0, (parts, 4)))
    lses = split.logsumexp(-1).permute(2, 0, 1)
    out, lse = merge_partials(
        outs.float().to(device).contiguous(), lses.float().to(device).contiguous(), backend=backend
    )
    assert relative_error(out.cpu(), logits.softmax(-1) @ values) < 1e-6
    assert relative_error(lse.cpu(), logits.logsumexp(-1)) < 1e-6


@BACKENDS
def test_merge_of_empty_parts(backend, device):
    """An empty part's values are never read, and all parts empty is zero, not NaN."""
    outs = torch.full((3, 2, 1, 64), torch.nan, device=device)
    lses = torch.full((3, 2, 1), -torch.inf, device=device)
    outs[1, 0] = 2.0
    lses[1, 0] = -1000.0
    out, lse = merge_partials(outs, lses, torch.float16, backend=backend)
    assert out.dtype == torch.float16
    assert (out[0] == 2.0).all() and (out[1] == 0.0).all()
    assert lse.flatten().tolist() == [-1000.0, -torch.inf]
