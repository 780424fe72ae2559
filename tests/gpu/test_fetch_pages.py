"""Pages moved between pinned memory and a GPU by the kernels themselves."""

from __future__ import annotations

import pytest
import torch

from hipcli.kernels.fetch_pages import fetch_pages_, fetch_values_, triton_impl
from hipcli.kernels.types import QUARTERS
from tests.kernels.builders import HostedPages, hosted_pages, random_moves

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
LLAMA = (8, 64, 128)
DTYPES = [torch.float8_e4m3fn, torch.bfloat16, torch.float32]


def records(world: HostedPages) -> torch.Tensor:
    """Bytes of all slots, a view."""
    pages = world.kv.k_pages
    size = pages.stride(0) * pages.element_size()
    return pages.view(torch.uint8).as_strided((len(pages), size), (size, 1))


def make(dtype: torch.dtype, shape: tuple[int, int, int] = LLAMA) -> HostedPages:
    return hosted_pages(shape, dtype, DEVICE, num_pages=100, slab_pages=16, num_slots=40)


@pytest.mark.parametrize("shape", [LLAMA, (3, 64, 64), (2, 64, 80)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_moves(dtype, shape):
    world = make(dtype, shape)
    generator = torch.Generator().manual_seed(1)
    for count in (1, 7, 40, 300, 1500):
        pages, slots = random_moves(world, count, generator)
        before = records(world).clone()
        expected = world.after_fetch(before, pages, slots, keys_only=True)
        fetch_pages_(world.kv, world.host, pages, slots, keys_only=True)
        assert torch.equal(records(world), expected)
        parts = torch.randint(0, QUARTERS, pages.shape, generator=generator).int().to(DEVICE)
        quarters = torch.where(pages >= 0, pages * QUARTERS + parts, -1)
        expected = world.after_values(expected, quarters, slots)
        fetch_values_(world.kv, world.host, quarters, slots)
        assert torch.equal(records(world), expected)
        expected = world.after_fetch(before, pages, slots)
        fetch_pages_(world.kv, world.host, pages, slots)
        assert torch.equal(records(world), expected)


@pytest.mark.parametrize(
    "tile", [(1, 2048, 1024, 4), (64, 1024, 64, 4), (512, 4096, 256, 8), (128, 512, 1024, 2)]
)
def test_every_tile_moves_the_same(tile):
    world = make(torch.float8_e4m3fn)
    pages, slots = random_moves(world, 300, torch.Generator().manual_seed(2))
    expected = world.after_fetch(records(world), pages, slots)
    triton_impl.launch_fetch(world.kv, world.host, pages, slots, triton_impl.Tile(*tile))
    assert torch.equal(records(world), expected)
    quarters = torch.where(pages >= 0, pages * QUARTERS + pages % QUARTERS, -1)
    world.slabs[0].random_(0, 256)
    expected = world.after_values(expected, quarters, slots)
    triton_impl.launch_fetch(world.kv, world.host, quarters, slots, triton_impl.Tile(*tile), 0)
    assert torch.equal(records(world), expected)


def test_a_graph_fetches_what_the_device_says():
    """Moves, and the memory they come from, change between replays."""
    world = make(torch.float8_e4m3fn)
    generator = torch.Generator().manual_seed(3)
    pages, slots = random_moves(world, 50, generator)
    fetch_pages_(world.kv, world.host, pages, slots)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fetch_pages_(world.kv, world.host, pages, slots)
    for step in range(20):
        for target, source in zip((pages, slots), random_moves(world, 50, generator), strict=True):
            target.copy_(source)
        world.slabs[step % 7].random_(0, 256)
        expected = world.after_fetch(records(world), pages, slots)
        graph.replay()
        assert torch.equal(records(world), expected)
