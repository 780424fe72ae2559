"""The vote in plain PyTorch."""

from __future__ import annotations

import torch

from ..paging import gather_pages
from ..rope.reference import rotate
from ..types import PagedKV, RopeTables


def vote(
    q: torch.Tensor,
    kv: PagedKV,
    seqlen_k: torch.Tensor,
    rope: RopeTables,
    distance: int,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `hipcli.kernels.vote.vote`."""
    num_pages = kv.page_table.shape[-1]
    num_kv_heads, page_size = kv.k_pages.shape[1:3]
    rows = rotate(q, rope.cos[distance], rope.sin[distance])
    rows = rows.unflatten(1, (num_kv_heads, -1))
    page_max = torch.full((*q.shape[:2], num_pages), -torch.inf, device=q.device)
    total = int(seqlen_k)
    for page in range(min(num_pages, -(-total // page_size))):
        logical = torch.tensor([page], device=q.device)
        keys = gather_pages(kv.k_pages, kv.page_table, logical, kv.k_scales)[0]
        keys = keys[:, : total - page * page_size].float()
        logits = torch.einsum("nhgd,hkd->nhgk", rows, keys) * softmax_scale
        page_max[:, :, page] = logits.amax(-1).flatten(1)
    return page_max, torch.logsumexp(page_max, dim=-1)
