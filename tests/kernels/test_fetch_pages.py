"""Pages between main memory and slots: both implementations against a model of plain lists."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.fetch_pages import fetch_pages_, fetch_values_
from hipcli.kernels.types import QUARTERS, HostPages, PagedKV

from .builders import HostedPages, hosted_pages, random_moves

BACKENDS = ["reference", "triton"]
# Heads, tokens a page, head_dim: runs of one piece, of less, and of several.
SHAPES = [(2, 16, 64), (3, 16, 80), (1, 64, 256)]
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]


def all_slots(kv: PagedKV) -> torch.Tensor:
    """Every byte of the records, the pad behind the scales too."""
    return torch.as_strided(kv.k_pages.view(torch.uint8), *record_view(kv))


def record_view(kv: PagedKV) -> tuple[tuple[int, int], tuple[int, int]]:
    record = kv.k_pages.stride(0) * kv.k_pages.element_size()
    return (len(kv.k_pages), record), (record, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_moves(backend, shape, dtype, device):
    world = hosted_pages(shape, dtype, device, num_pages=11, slab_pages=4, num_slots=7)
    generator = torch.Generator().manual_seed(1)
    for count in (5, 1):
        pages, slots = random_moves(world, count, generator)
        before = all_slots(world.kv).clone()
        expected = world.after_fetch(before, pages, slots, keys_only=True)
        fetch_pages_(world.kv, world.host, pages, slots, keys_only=True, backend=backend)
        assert torch.equal(all_slots(world.kv), expected)
        quarters = torch.where(pages >= 0, pages * QUARTERS + pages % QUARTERS, -1)
        expected = world.after_values(expected, quarters, slots)
        fetch_values_(world.kv, world.host, quarters, slots, backend=backend)
        assert torch.equal(all_slots(world.kv), expected)
        expected = world.after_fetch(before, pages, slots)
        fetch_pages_(world.kv, world.host, pages, slots, backend=backend)
        assert torch.equal(all_slots(world.kv), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slabs_that_are_not_in_memory_are_left_out(backend, device):
    world = hosted_pages(
        (2, 16, 64), torch.bfloat16, device, num_pages=8, slab_pages=4, num_slots=9
    )
    bases = world.host.bases.clone()
    bases[1] = 0
    host = HostPages(bases, 4)
    before = all_slots(world.kv).clone()
    # Page 9 lies beyond all slabs.
    pages = torch.tensor([[5, 3, 9], [7, 4, 6]], dtype=torch.int32, device=device)
    slots = torch.tensor([[0, 1, 2], [0, 1, 2]], dtype=torch.int32, device=device)
    fetch_pages_(world.kv, host, pages, slots, backend=backend)
    expected = world.after_fetch(before, torch.tensor([[3], [-1]]), torch.tensor([[1], [1]]))
    assert torch.equal(all_slots(world.kv), expected)


def _fetch(world: HostedPages, kv: PagedKV, count: int = 3, heads: int = 2) -> None:
    pages = torch.zeros(heads, count, dtype=torch.int32, device=kv.k_pages.device)
    fetch_pages_(kv, world.host, pages, pages, backend="reference")


def test_refusals(device):
    world = hosted_pages((2, 16, 64), torch.float32, device, num_pages=4, slab_pages=4, num_slots=5)
    kv = world.kv
    with pytest.raises(ValueError, match=r"pages: expected shape \[2, any\], received \[3, 3\]"):
        _fetch(world, kv, heads=3)
    with pytest.raises(ValueError, match="v_pages: expected in one record with k_pages"):
        _fetch(world, dataclasses.replace(kv, v_pages=all_slots(kv).clone().view(torch.float32)
               .as_strided(kv.v_pages.shape, kv.v_pages.stride())))  # fmt: skip
    with pytest.raises(ValueError, match="must be one run of memory"):
        half = dataclasses.replace(kv, k_pages=kv.k_pages[..., :32], v_pages=kv.v_pages[..., :32])
        _fetch(world, half)
    thin = hosted_pages((1, 2, 6), torch.bfloat16, device, num_pages=4, slab_pages=4, num_slots=5)
    with pytest.raises(ValueError, match="must be a multiple of 16 bytes, has 24"):
        _fetch(thin, thin.kv, heads=1)
    with pytest.raises(TypeError, match="host.bases: expected dtype int64"):
        bad = dataclasses.replace(world, host=HostPages(world.host.bases.int(), 4))
        _fetch(bad, kv)
    with pytest.raises(ValueError, match="host.slab_pages: expected an int of at least 1"):
        _fetch(dataclasses.replace(world, host=HostPages(world.host.bases, 0)), kv)
