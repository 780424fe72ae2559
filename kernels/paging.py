"""Reading paged keys and values with plain PyTorch, for references and tests."""

from __future__ import annotations

import torch


def gather_tokens(
    pages: torch.Tensor, page_table: torch.Tensor, tokens: torch.Tensor
) -> torch.Tensor:
    """Rows of the given logical tokens.

    Args:
        pages: [P, num_kv_heads, page_size, head_dim].
        page_table: int32 [num_pages].
        tokens: int64 [n], logical token positions.

    Returns:
        [num_kv_heads, n, head_dim].
    """
    page_size = pages.shape[2]
    slots = page_table.long()[tokens // page_size]
    return pages[slots, :, tokens % page_size].transpose(0, 1)


def gather_pages(
    pages: torch.Tensor, page_table: torch.Tensor, logical_pages: torch.Tensor
) -> torch.Tensor:
    """Whole logical pages: [n, num_kv_heads, page_size, head_dim] for int64 [n]."""
    return pages[page_table.long()[logical_pages]]
