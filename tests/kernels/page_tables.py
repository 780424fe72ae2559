"""Page tables of each KV head, and tables with holes: made from a case, and compared with it."""

from __future__ import annotations

from dataclasses import replace

import torch

from hipcli.kernels.page_index import new_page_index, update_page_index_
from hipcli.kernels.types import PagedKV, PageIndex, SparsePlan

from .builders import Case, paged_codes


def spread(kv: PagedKV, seed: int = 0) -> PagedKV:
    """The same pages with every KV head's in slots of its own, under a table of each head."""
    generator = torch.Generator().manual_seed(seed)
    heads, device = kv.k_pages.shape[1], kv.k_pages.device
    if kv.k_scales is None:
        pages = torch.full_like(torch.stack((kv.k_pages, kv.v_pages), dim=1), torch.nan)
        result = PagedKV(pages[:, 0], pages[:, 1], kv.page_table)
    else:
        result = paged_codes(*kv.k_pages.shape, kv.page_table, device)
    rows = []
    for head in range(heads):
        slots = torch.randperm(len(kv.k_pages), generator=generator).to(device)
        for name in ("k_pages", "v_pages", "k_scales", "v_scales"):
            old, new = getattr(kv, name), getattr(result, name)
            if old is not None:
                old, new = old[:, head], new[:, head]
                if old.dtype == torch.float8_e4m3fn:
                    # As bytes: index_put knows no float8.
                    old, new = old.view(torch.uint8), new.view(torch.uint8)
                new[slots] = old
        rows.append(slots[kv.page_table.long()])
    return replace(result, page_table=torch.stack(rows).int())


def needed_pages(case: Case, plan: SparsePlan) -> torch.Tensor:
    """Bool [num_kv_heads, num_pages]: what a plan attends to."""
    heads, num_pages = case.shape.num_kv_heads, case.kv.page_table.shape[-1]
    needed = torch.zeros(heads, num_pages, dtype=torch.bool, device=case.q.device)
    size, per_page = case.shape.page_size, case.shape.page_size // plan.block_size_k
    for start, rows in zip(plan.window_starts.tolist(), plan.block_indices, strict=True):
        needed[:, start // size : -(-case.shape.seqlen_k // size)] = True
        needed[:, : plan.sink_tokens // size] = True
        for head, row in enumerate(rows):
            needed[head, row[row >= 0].long() // per_page] = True
    return needed


def without(kv: PagedKV, needed: torch.Tensor) -> PagedKV:
    """A table of each head with no slots but for the pages `needed`, bool [heads, num_pages]."""
    return replace(kv, page_table=kv.page_table.masked_fill(~needed, -1))


def shards(kv: PagedKV, owners: list[int]) -> list[PagedKV]:
    """Tables of three shards, with holes for what lies in the others.

    Args:
        kv: all pages, under one table or one of each KV head.
        owners: of the table's entries, in their order, repeated as often as needed.
    """
    table = kv.page_table
    times = -(-table.numel() // len(owners))
    owner = torch.tensor(owners, device=table.device).repeat(times)[: table.numel()]
    return [without(kv, owner.view_as(table) == rank) for rank in range(3)]


def assert_same_pages(one: PagedKV, other: PagedKV, num_pages: int) -> None:
    """The first pages hold the same, each found by its own table: bits, and NaN where never
    written."""
    heads = one.k_pages.shape[1]
    for head in range(heads):
        for name in ("k_pages", "v_pages", "k_scales", "v_scales"):
            held = [
                getattr(kv, name)[:, head].float()[table[:num_pages].long()].nan_to_num(9e9)
                for kv in (one, other)
                for table in (kv.page_table.expand(heads, -1)[head],)
            ]
            assert torch.equal(*held)


def bounds(
    case: Case, kv: PagedKV, left: int, dtype: torch.dtype = torch.float32, backend: str = "auto"
) -> PageIndex:
    """The page index of all but the case's last tokens, `left` of them."""
    shape = (kv.k_pages.shape[1], kv.page_table.shape[-1], case.shape.head_dim)
    size = case.shape.page_size
    index = new_page_index("bounds", shape, size, dtype=dtype, device=case.q.device)
    update_page_index_(
        index, kv.k_pages, kv.page_table, case.seqlen_k - left, case.shape.seqlen_k,
        k_scales=kv.k_scales, backend=backend,
    )  # fmt: skip
    return index
