"""Upper bounds of q.k per page from the channel-wise bounds of its keys, as one matrix product.

For every channel the larger of q * max and q * min bounds q * k, so with q split into its positive
and negative parts the bound of a page is [q+, q-] . [max, min].
Source: Quest (arXiv 2406.10774), section 3.
"""

import torch


def page_bounds(q: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Bounds of the scores of every page.

    Args:
        q: [num_kv_heads, rows, head_dim], scaled, rotated to one fixed distance.
        index: [num_pages, num_kv_heads, 2 * head_dim]: maxima, then minima of un-rotated keys.

    Returns:
        [num_kv_heads, rows, num_pages], q's dtype.
    """
    split = torch.cat((q.clamp(min=0), q.clamp(max=0)), dim=-1)
    return torch.bmm(split, index.permute(1, 2, 0))
