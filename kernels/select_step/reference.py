"""The step in plain PyTorch: its five operators' references in a row."""

from __future__ import annotations

import torch

from ..page_index.reference import update_page_index_
from ..score_blocks.reference import score_blocks
from ..score_pages.reference import score_pages
from ..select_blocks.reference import select_blocks
from ..types import PagedKV, PageIndex, RopeTables, SelectionSizes


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
    update_page_index_(index, kv.k_pages, kv.page_table, seqlen_k, len(q), kv.k_scales)
    queries = (sizes.block_size_q, sizes.query_stride)
    scores = score_pages(q, index, window_starts, rope, sizes.distance, *queries, sizes.sink_tokens)
    pages = select_blocks(scores, sizes.candidate_pages)
    scores = score_blocks(
        q, kv, pages, rope, sizes.distance, sizes.block_size_q, sizes.block_size_k,
        sizes.query_stride,
    )  # fmt: skip
    return select_blocks(scores, sizes.num_selected, pages)
