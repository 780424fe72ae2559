"""Moving pages by loads and stores of the kernel itself: no copy engine, no launch a page.

An address of pinned memory becomes a pointer, so what is moved may be decided on the device. A
program moves 8 KiB at once, 16 bytes a thread and load, and some tens of them keep the bus
busy: it has a latency of microseconds, and what is under way must cover that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..triton_common import require_launchable
from ..types import QUARTERS, HostPages, PagedKV

WORD_BYTES = 4
_QUARTERS = tl.constexpr(QUARTERS)


@dataclass(frozen=True, slots=True)
class Tile:
    """Sizes of one launch.

    Args:
        programs: in all, about: enough to fill the bus, and most of the device is left to
            what computes.
        piece_words: moved at once by a program, in words of four bytes.
        entries: of the list of moves that a program looks through.
    """

    programs: int = 64
    piece_words: int = 2048
    entries: int = 1024
    num_warps: int = 4


# Quarters are small: what is under way is more of them.
VALUES_TILE = Tile(programs=128)


@dataclass(frozen=True, slots=True)
class Layout:
    """A record in words: of a run, to the next record, to the next KV head, and from a record's
    keys to its values, to the scales of keys and to those of values (both 0 without scales)."""

    run: int
    record: int
    head: int
    values: int
    k_scales: int
    v_scales: int

    def sizes(self, tile: Tile, parts: int = 1) -> tuple[int, ...]:
        """SIZES of the kernels: the fields in order, words of a piece, pieces of a run, or of one
        of so many parts of a run."""
        run = self.run // parts
        piece = min(tile.piece_words, triton.next_power_of_2(run))
        fields = (self.run, self.record, self.head, self.values, self.k_scales, self.v_scales)
        return (*fields, piece, triton.cdiv(run, piece))


@triton.jit
def _move_piece(pool, address, slot, head, piece, SIZES: tl.constexpr):
    """Bring one piece of keys or values of a page and KV head, the first one with the scales."""
    RUN: tl.constexpr = SIZES[0]
    HEAD: tl.constexpr = SIZES[2]
    PIECE: tl.constexpr = SIZES[6]
    PER_RUN: tl.constexpr = SIZES[7]
    # An address says nothing about its alignment by itself.
    there = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)
    here = pool + slot.to(tl.int64) * SIZES[1]
    is_value = piece // PER_RUN
    word = (piece % PER_RUN) * PIECE + tl.arange(0, PIECE)
    at = head * HEAD + is_value * SIZES[3] + word
    inside = word < RUN
    if SIZES[4] > 0:
        both = tl.arange(0, 2)
        at_scale = head + SIZES[4] + both * (SIZES[5] - SIZES[4])
        first = (both >= 0) & (piece == 0)
        scale = tl.load(there + at_scale, mask=first)
        words = tl.load(there + at, mask=inside)
        tl.store(here + at_scale, scale, mask=first)
        tl.store(here + at, words, mask=inside)
    else:
        tl.store(here + at, tl.load(there + at, mask=inside), mask=inside)


@triton.jit
def _move_values(pool, address, slot, head, quarter, piece, SIZES: tl.constexpr):
    """Bring one piece of a quarter of the values of a page and KV head."""
    RUN: tl.constexpr = SIZES[0] // _QUARTERS
    there = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)
    here = pool + slot.to(tl.int64) * SIZES[1]
    word = piece * SIZES[6] + tl.arange(0, SIZES[6])
    at = head * SIZES[2] + SIZES[3] + quarter * RUN + word
    tl.store(here + at, tl.load(there + at, mask=word < RUN), mask=word < RUN)


@triton.jit
def _fetch(
    pool,
    bases,
    pages,
    slots,
    num_moves,
    num_slabs,
    slab_pages,
    page_stride,
    slot_stride,
    SIZES: tl.constexpr,
    ENTRIES: tl.constexpr,
    WHAT: tl.constexpr,
):
    """WHAT: 2 for keys and values of the pages listed, 1 for keys, 0 for values of the quarters of
    pages listed."""
    PIECES: tl.constexpr = max(WHAT, 1) * SIZES[7]
    PER_PAGE: tl.constexpr = 1 if WHAT else _QUARTERS
    head = tl.program_id(1)
    entry = tl.program_id(2) * ENTRIES + tl.arange(0, ENTRIES)
    listed = entry < num_moves
    number = tl.load(pages + head * page_stride + entry, mask=listed, other=-1)
    slot = tl.load(slots + head * slot_stride + entry, mask=listed, other=-1)
    page = number // PER_PAGE
    slab = page // slab_pages
    listed = (number >= 0) & (slot >= 0) & (slab < num_slabs)
    base = tl.load(bases + slab, mask=listed, other=0)
    listed = listed & (base != 0)
    # Programs share the moves that there are, not the places of the list.
    rank = tl.where(listed, tl.cumsum(listed.to(tl.int32), axis=0), 0)
    count = tl.max(rank, axis=0)
    record = base + (page % slab_pages).to(tl.int64) * (SIZES[1] * 4)
    for unit in range(tl.program_id(0), count * PIECES, tl.num_programs(0)):
        mine = rank == unit // PIECES + 1
        address = tl.sum(tl.where(mine, record, 0), axis=0)
        to_slot = tl.sum(tl.where(mine, slot, 0), axis=0)
        if WHAT > 0:
            _move_piece(pool, address, to_slot, head, unit % PIECES, SIZES)
        else:
            quarter = tl.sum(tl.where(mine, number % PER_PAGE, 0), axis=0)
            _move_values(pool, address, to_slot, head, quarter, unit % PIECES, SIZES)


def _words(kv: PagedKV) -> tuple[torch.Tensor, Layout]:
    """The slots as int32, from the first one's keys on, and how a record is laid out."""
    pages = kv.k_pages
    size = pages.element_size()

    def offset(tensor: torch.Tensor | None) -> int:
        if tensor is None:
            return 0
        begin = tensor.storage_offset() * tensor.element_size()
        return (begin - pages.storage_offset() * size) // WORD_BYTES

    run = pages.shape[2] * pages.shape[3]
    steps = (step * size // WORD_BYTES for step in (run, pages.stride(0), pages.stride(1)))
    layout = Layout(*steps, offset(kv.v_pages), offset(kv.k_scales), offset(kv.v_scales))
    return pages.view(torch.int32), layout


def launch_fetch(
    kv: PagedKV,
    host: HostPages,
    pages: torch.Tensor,
    slots: torch.Tensor,
    tile: Tile | None = None,
    what: int = 2,
) -> None:
    """Fetch with a given tile; `what` as in the kernel."""
    tile = tile or (Tile() if what else VALUES_TILE)
    heads, num_moves = pages.shape
    if num_moves == 0:
        return
    pool, layout = _words(kv)
    entries = min(tile.entries, triton.next_power_of_2(num_moves))
    lists = triton.cdiv(num_moves, entries)
    sizes = layout.sizes(tile, 1 if what else QUARTERS)
    # No more programs than pieces to move.
    pieces = min(entries, num_moves) * max(what, 1) * sizes[7]
    sharing = min(triton.cdiv(tile.programs, heads * lists), pieces)
    _fetch[(sharing, heads, lists)](
        pool,
        host.bases,
        pages,
        slots,
        num_moves,
        len(host.bases),
        host.slab_pages,
        pages.stride(0),
        slots.stride(0),
        SIZES=sizes,
        ENTRIES=entries,
        WHAT=what,
        num_warps=tile.num_warps,
        num_stages=1,
    )


def fetch_pages_(
    kv: PagedKV, host: HostPages, pages: torch.Tensor, slots: torch.Tensor, keys_only: bool
) -> None:
    """See `hipcli.kernels.fetch_pages.fetch_pages_`."""
    require_launchable(pages)
    launch_fetch(kv, host, pages, slots, what=1 if keys_only else 2)


def fetch_values_(
    kv: PagedKV, host: HostPages, quarters: torch.Tensor, slots: torch.Tensor
) -> None:
    """See `hipcli.kernels.fetch_pages.fetch_values_`."""
    require_launchable(quarters)
    launch_fetch(kv, host, quarters, slots, what=0)
