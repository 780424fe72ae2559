"""Random inputs for the kernel tests: scattered pages, gaps full of NaN, plans, tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hipcli.kernels.paging import gather_tokens
from hipcli.kernels.quantise_pages import quantise_pages_
from hipcli.kernels.types import QUARTERS, HostPages, PagedKV, RopeTables, SparsePlan


@dataclass(frozen=True)
class Shape:
    """Sizes of one case; `seqlen_k` includes the `num_tokens` queries at its end."""

    num_tokens: int
    seqlen_k: int
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    page_size: int = 16
    rotary_dim: int | None = None


@dataclass(frozen=True)
class Case:
    """Tensors of one case, and the contiguous keys and values they were made from."""

    shape: Shape
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    kv: PagedKV
    seqlen_k: torch.Tensor
    rope: RopeTables


def rope_tables(positions: int, rotary_dim: int, device, theta: float = 10000.0) -> RopeTables:
    """Half-split tables in fp32, computed in fp64."""
    inverse = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return RopeTables(angles.cos().float().to(device), angles.sin().float().to(device))


def make_case(
    shape: Shape, device, dtype: torch.dtype = torch.float32, positions: int = 512, seed: int = 0
) -> Case:
    """Random q, k, v; pages lie shuffled among unused slots, unwritten rows hold NaN."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    heads, width = shape.num_kv_heads, shape.head_dim
    q = random(shape.num_tokens, shape.num_heads, width)
    keys = random(shape.seqlen_k, heads, width)
    values = random(shape.seqlen_k, heads, width)
    num_pages = -(-shape.seqlen_k // shape.page_size)
    slots = torch.randperm(num_pages + 3, generator=generator)[:num_pages]
    pages = torch.full((num_pages + 3, 2, heads, shape.page_size, width), torch.nan, dtype=dtype)
    for token in range(shape.seqlen_k):
        slot = slots[token // shape.page_size]
        pages[slot, 0, :, token % shape.page_size] = keys[token]
        pages[slot, 1, :, token % shape.page_size] = values[token]
    pages = pages.to(device)
    # Room for more pages than the sequence has, as in an engine's table.
    table = torch.cat((slots, torch.zeros(2, dtype=torch.long))).int().to(device)
    return Case(
        shape,
        q.to(device),
        keys.to(device),
        values.to(device),
        PagedKV(pages[:, 0], pages[:, 1], table),
        torch.tensor([shape.seqlen_k], dtype=torch.int32, device=device),
        rope_tables(positions, shape.rotary_dim or width, device),
    )


def make_plan(
    case: Case,
    block_size_q: int,
    window_tokens: int,
    num_selected: int,
    sink_tokens: int = 16,
    block_size_k: int = 8,
    seed: int = 0,
) -> SparsePlan:
    """Windows as an engine would place them, and random selected blocks between."""
    shape = case.shape
    generator = torch.Generator().manual_seed(seed)
    first = shape.seqlen_k - shape.num_tokens
    starts, rows = [], []
    for block in range(-(-shape.num_tokens // block_size_q)):
        position = first + block * block_size_q
        start = max(position - window_tokens, 0) // shape.page_size * shape.page_size
        start = start if start > sink_tokens else 0
        starts.append(start)
        for _ in range(shape.num_kv_heads):
            end = max(start, sink_tokens) // block_size_k
            free = torch.arange(sink_tokens // block_size_k, end)
            # Some rows stay short, so that tails and counts differ between heads.
            least = num_selected // 2
            wanted = int(torch.randint(least, num_selected + 1, (), generator=generator))
            chosen = free[torch.randperm(len(free), generator=generator)[:wanted]].sort().values
            row = torch.full((num_selected,), -1, dtype=torch.int32)
            row[: len(chosen)] = chosen.int()
            rows.append(row)
    indices = torch.stack(rows).view(len(starts), shape.num_kv_heads, num_selected)
    longest_window = first + shape.num_tokens - min(starts)
    return SparsePlan(
        indices.to(case.q.device),
        torch.tensor(starts, dtype=torch.int32, device=case.q.device),
        block_size_q,
        block_size_k,
        sink_tokens,
        sink_tokens + num_selected * block_size_k + longest_window,
    )


def paged_codes(
    num_slots: int,
    heads: int,
    page_size: int,
    width: int,
    table,
    device,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> PagedKV:
    """Unwritten pages, fp8 NaN all over, each followed by its scales as in an engine's store."""
    codes = 2 * heads * page_size * width
    records = torch.full((num_slots, codes + 128), 0x7F, dtype=torch.uint8, device=device)
    pages = records[:, :codes].view(dtype)
    pages = pages.unflatten(1, (2, heads, page_size, width))
    scales = records.view(torch.float32)[:, codes // 4 : codes // 4 + 2 * heads]
    scales = scales.fill_(torch.nan).unflatten(1, (2, heads))
    return PagedKV(pages[:, 0], pages[:, 1], table, scales[:, 0], scales[:, 1])


def written(
    case: Case,
    calls: list[int],
    backend: str = "auto",
    table: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> PagedKV:
    """Pages of codes with the case's tokens, written in calls of so many; in their own table, or
    in one of each KV head."""
    table = case.kv.page_table if table is None else table
    kv = paged_codes(*case.kv.k_pages.shape, table, case.q.device, dtype)
    done = 0
    for count in calls:
        new = slice(done, done + count)
        done += count
        length = torch.tensor([done], dtype=torch.int32, device=case.q.device)
        quantise_pages_(kv, case.keys[new], case.values[new], length, backend=backend)
    return kv


def quantised(case: Case, dtype: torch.dtype = torch.float8_e4m3fn) -> Case:
    """The case with pages of codes; its keys and values are what the pages then hold."""
    kv = written(case, [case.shape.seqlen_k], "reference", dtype=dtype)
    tokens = torch.arange(case.shape.seqlen_k, device=case.q.device)
    keys, values = (
        gather_tokens(stored, kv.page_table, tokens, scales).transpose(0, 1)
        for stored, scales in ((kv.k_pages, kv.k_scales), (kv.v_pages, kv.v_scales))
    )
    return replace(case, kv=kv, keys=keys.to(case.keys.dtype), values=values.to(case.keys.dtype))


@dataclass(frozen=True)
class HostedPages:
    """Slots full of noise, and slabs in main memory with pages of other noise."""

    kv: PagedKV
    host: HostPages
    slabs: list[torch.Tensor]

    def record(self, page: int) -> torch.Tensor:
        """Bytes of a page in main memory, a view."""
        slab, place = divmod(page, self.host.slab_pages)
        return self.slabs[slab][place]

    def parts(self, head: int) -> list[slice]:
        """Where keys, values and scales of a KV head lie in a record, in bytes."""
        pages = self.kv.k_pages
        heads, run = pages.shape[1], pages[0, 0].numel() * pages.element_size()
        parts = [slice(at * run, (at + 1) * run) for at in (head, heads + head)]
        if self.kv.k_scales is not None:
            first = 2 * heads * run
            parts += [slice(at, at + 4) for at in (first + 4 * head, first + 4 * (heads + head))]
        return parts

    def after_fetch(
        self,
        records: torch.Tensor,
        pages: torch.Tensor,
        slots: torch.Tensor,
        *,
        keys_only: bool = False,
    ) -> torch.Tensor:
        """Bytes of all slots after moves."""
        records = records.clone()
        for head, (row, targets) in enumerate(zip(pages.tolist(), slots.tolist(), strict=True)):
            parts = self.parts(head)
            if keys_only:
                del parts[1]
            for page, slot in zip(row, targets, strict=True):
                for part in parts if page >= 0 and slot >= 0 else ():
                    records[slot, part] = self.record(page)[part].to(records.device)
        return records

    def after_values(
        self, records: torch.Tensor, quarters: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """Bytes of all slots after moves of quarters of values."""
        records = records.clone()
        for head, (row, targets) in enumerate(zip(quarters.tolist(), slots.tolist(), strict=True)):
            values = self.parts(head)[1]
            size = (values.stop - values.start) // QUARTERS
            for quarter, slot in zip(row, targets, strict=True):
                first = values.start + quarter % QUARTERS * size
                part = slice(first, first + size)
                if quarter >= 0 and slot >= 0:
                    record = self.record(quarter // QUARTERS)
                    records[slot, part] = record[part].to(records.device)
        return records


def hosted_pages(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    device,
    *,
    num_pages: int,
    slab_pages: int,
    num_slots: int,
) -> HostedPages:
    """Slots and slabs of shape (num_kv_heads, page_size, head_dim); pinned where a GPU reads."""
    heads, size, width = shape
    content = 2 * heads * size * width * dtype.itemsize
    quantised = dtype == torch.float8_e4m3fn
    record = content + 128 * quantised
    generator = torch.Generator().manual_seed(0)

    def noise(rows: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, record), generator=generator, dtype=torch.uint8)

    slots = noise(num_slots).to(device)
    pages = slots[:, :content].view(dtype).unflatten(1, (2, heads, size, width))
    scales = (None, None)
    if quantised:
        both = slots.view(torch.float32)[:, content // 4 : content // 4 + 2 * heads]
        scales = both.unflatten(1, (2, heads)).unbind(1)
    pinned = torch.device(device).type == "cuda"
    slabs = [noise(slab_pages) for _ in range(-(-num_pages // slab_pages))]
    slabs = [slab.pin_memory() for slab in slabs] if pinned else slabs
    bases = torch.tensor([slab.data_ptr() for slab in slabs], dtype=torch.int64, device=device)
    table = torch.full((num_pages,), -1, dtype=torch.int32, device=device)
    kv = PagedKV(pages[:, 0], pages[:, 1], table, *scales)
    return HostedPages(kv, HostPages(bases, slab_pages), slabs)


def random_moves(
    world: HostedPages, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages and slots int32 [num_kv_heads, count], a part of them -1, no slot twice in a row."""
    heads, num_slots = world.kv.k_pages.shape[1], len(world.kv.k_pages)
    num_pages = len(world.slabs) * world.host.slab_pages
    pages = torch.randint(-1, num_pages, (heads, count), generator=generator)
    slots = torch.full((heads, count), -1)
    for row in slots:
        places = torch.randperm(count, generator=generator)[: min(count, num_slots)]
        row[places] = torch.randperm(num_slots, generator=generator)[: len(places)]
    device = world.kv.k_pages.device
    return pages.int().to(device), slots.int().to(device)
