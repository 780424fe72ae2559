"""One step of selection in as few launches as it takes: index, pages, blocks."""

from __future__ import annotations

import torch

from ..backends import implementation, resolve
from ..checks import (
    check_counters,
    check_distance,
    check_index,
    check_pages,
    check_queries,
    check_rope,
    check_seqlen,
    num_q_blocks,
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
)
from ..types import PagedKV, PageIndex, RopeTables, SelectionSizes


def select_step_(
    q: torch.Tensor,
    kv: PagedKV,
    index: PageIndex,
    window_starts: torch.Tensor,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    sizes: SelectionSizes,
    *,
    counters: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Summarise the newest tokens' pages in place, then select blocks for every query block.

    The same as `update_page_index_`, `score_pages`, `select_blocks`, `score_blocks` and
    `select_blocks` one after the other. No launch depends on a value on the device.

    Args:
        q: [N, num_heads, head_dim], un-rotated; its token n stands at seqlen_k - N + n.
        kv: pages of keys; values are not read.
        index: summaries of at least as many pages as the sequence has, up to date but for the
            N newest tokens.
        window_starts: int32 [num_q_blocks], tokens; at most the first position of the block,
            0 means the block selects nothing.
        seqlen_k: int32 [1], tokens in the cache, the queries' own included.
        rope: tables with more than `sizes.distance` rows.
        sizes: how much is selected, and in which units.
        counters: int32 [num_q_blocks * num_kv_heads or more], all zero, and left so: where the
            programs that share a row's pages meet. None makes one, a launch more; calls that
            may run at the same time must not share one.
        backend: a name of BACKENDS, or "auto".

    Returns:
        int32 [num_q_blocks, num_kv_heads, sizes.num_selected] block numbers, ascending, -1 for
        the unused tail.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
    """
    check_pages(kv, q, backend)
    heads, page_size = kv.k_pages.shape[1:3]
    check_queries(q, heads)
    check_index(index, resolve(backend, q.device))
    require_shape("index.summaries", index.summaries, (heads, None, None, q.shape[2]))
    if index.page_size != page_size:
        raise ValueError(f"index.page_size: expected {page_size}, received {index.page_size}")
    check_rope(rope, q.shape[2])
    check_seqlen(seqlen_k)
    _check_sizes(sizes, page_size, rope)
    blocks = num_q_blocks(q.shape[0], sizes.block_size_q)
    require_shape("window_starts", window_starts, (blocks,))
    require_dtype("window_starts", window_starts, (torch.int32,))
    if counters is not None:
        check_counters(counters, blocks * heads)
    require_same_device(
        q=q, k_pages=kv.k_pages, page_table=kv.page_table, summaries=index.summaries,
        window_starts=window_starts, seqlen_k=seqlen_k, cos=rope.cos, counters=counters,
    )  # fmt: skip
    run = implementation("select_step", backend, q.device, "select_step_")
    return run(q, kv, index, window_starts, seqlen_k, rope, sizes, counters)


def _check_sizes(sizes: SelectionSizes, page_size: int, rope: RopeTables) -> None:
    """Check how much is selected against the page size and the tables."""
    check_distance(sizes.distance, rope)
    require_positive(
        block_size_q=sizes.block_size_q,
        block_size_k=sizes.block_size_k,
        query_stride=sizes.query_stride,
        candidate_pages=sizes.candidate_pages,
        num_selected=sizes.num_selected,
    )
    for name in ("sink_tokens", "block_size_k"):
        value = getattr(sizes, name)
        fits = value % page_size if name == "sink_tokens" else page_size % value
        if value < 0 or fits:
            raise ValueError(f"{name}: expected to fit the page size {page_size}, received {value}")
