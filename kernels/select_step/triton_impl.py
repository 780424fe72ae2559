"""The step in three or four launches.

A single query's page lies in its window and is never scored, so it is summarised while the
others are; the last program of a row chooses its blocks (see `score_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..page_index.triton_impl import update_page_index_
from ..score_blocks import triton_impl as blocks_impl
from ..score_pages import triton_impl as pages_impl
from ..select_blocks.triton_impl import CHUNK
from ..select_blocks.triton_impl import launch as select
from ..triton_common import require_launchable, require_supported
from ..types import PagedKV, PageIndex, RopeTables, SelectionSizes


@dataclass(frozen=True, slots=True)
class Variant:
    """How a step is launched; None is each operator's default."""

    pages: pages_impl.Tile | None = None
    blocks: blocks_impl.Tile | None = None
    select_chunk: int = CHUNK
    select_warps: int | None = None
    early: bool = False


def launch(
    q: torch.Tensor,
    kv: PagedKV,
    index: PageIndex,
    window_starts: torch.Tensor,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    sizes: SelectionSizes,
    counters: torch.Tensor | None = None,
    variant: Variant | None = None,
) -> torch.Tensor:
    """Select with a given variant."""
    variant = variant or Variant()
    newest = (kv, seqlen_k)
    if len(q) > 1:
        # Later blocks may score pages that this call's own tokens fill.
        update_page_index_(index, kv.k_pages, kv.page_table, seqlen_k, len(q), kv.k_scales)
        newest = None
    scores = pages_impl.launch(
        q, index, window_starts, rope, sizes.distance,
        (sizes.block_size_q, sizes.query_stride, sizes.sink_tokens),
        variant.pages, newest, variant.early,
    )  # fmt: skip
    pages = select(
        scores, sizes.candidate_pages, None,
        variant.select_chunk, variant.select_warps, variant.early,
    )  # fmt: skip
    return blocks_impl.launch(
        q, kv, pages, rope, sizes.distance,
        (sizes.block_size_q, sizes.block_size_k, sizes.query_stride),
        variant.blocks, sizes.num_selected, counters, variant.early,
    )  # fmt: skip


def select_step_(
    q: torch.Tensor,
    kv: PagedKV,
    index: PageIndex,
    window_starts: torch.Tensor,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    sizes: SelectionSizes,
    counters: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `hipcli.kernels.select_step.select_step_`."""
    require_launchable(q, kv.k_pages, index.summaries)
    require_supported(q.shape[2], q.shape[1], kv.k_pages.shape[1])
    return launch(q, kv, index, window_starts, seqlen_k, rope, sizes, counters)
