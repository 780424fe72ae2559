"""How wrong torch itself is in a precision: what a kernel's error is measured by.

Each function does a kernel's computation with torch's own operators in the dtype of the case;
`budget` makes of it what the kernel may err.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from hipcli.kernels.paging import gather_pages, gather_tokens
from hipcli.kernels.rope.reference import rotate
from hipcli.kernels.score_pages.reference import pooled_rows
from hipcli.kernels.sparse_prefill.reference import packed_tokens
from hipcli.kernels.types import PageIndex, SparsePlan
from tests.kernels.builders import Case
from tests.kernels.oracles import relative_error

# exp2 and log2 of a GPU are approximations, fp32 sums go in another order than torch's.
FLOOR = {torch.float32: 2e-5}


def budget(by_torch: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> float:
    """Twice torch's error, and the rounding of the dtype."""
    finite = truth.isfinite()
    error = relative_error(by_torch[finite].float(), truth[finite])
    return max(2 * error + torch.finfo(dtype).eps, FLOOR.get(dtype, 0.0))


def attention(case: Case, plan: SparsePlan, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Out by SDPA and lse by a softmax in fp32, of operands rounded to the case's dtype."""
    q, kv, rope, dtype = case.q, case.kv, case.rope, case.q.dtype
    heads = kv.k_pages.shape[1]
    group = q.shape[1] // heads
    first = int(case.seqlen_k) - len(q)
    out = torch.zeros_like(q)
    lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device)
    for block, n0 in enumerate(range(0, len(q), plan.block_size_q)):
        n1 = min(n0 + plan.block_size_q, len(q))
        for head in range(heads):
            tokens, base = packed_tokens(plan, block, head, first + n1)
            places = torch.arange(len(tokens), device=q.device)
            queries = torch.arange(first + n0, first + n1, device=q.device)
            queries += base - int(plan.window_starts[block])
            mine = slice(head * group, (head + 1) * group)
            keys, values = (
                gather_tokens(pages[:, head : head + 1], kv.page_table, tokens)
                for pages in (kv.k_pages, kv.v_pages)
            )
            keys = rotate(keys, rope.cos[places], rope.sin[places]).to(dtype)
            rows = q[n0:n1, mine].transpose(0, 1)
            rows = rotate(rows, rope.cos[queries], rope.sin[queries]).to(dtype)
            mask = places <= queries[:, None]
            keys, values = keys.expand(group, -1, -1), values.expand(group, -1, -1)
            result = scaled_dot_product_attention(
                rows[None], keys[None], values[None], attn_mask=mask, scale=scale
            )
            out[n0:n1, mine] = result[0].transpose(0, 1)
            logits = (rows @ keys.transpose(1, 2)).float() * scale
            logits = logits.masked_fill(~mask, -torch.inf)
            lse[n0:n1, mine] = logits.logsumexp(-1).transpose(0, 1)
    return out, lse


def page_scores(
    case: Case, index: PageIndex, distance: int, block_size_q: int, query_stride: int
) -> torch.Tensor:
    """[num_q_blocks, num_kv_heads, num_pages], no page left out."""
    dtype = case.q.dtype
    summaries = index.summaries.float()
    if index.scales is not None:
        summaries = summaries * index.scales[:, :, None, None]
    summaries = summaries.to(dtype)
    scores = []
    for queries in case.q.split(block_size_q):
        rows = pooled_rows(queries, case.rope, distance, len(summaries), query_stride).to(dtype)
        if index.kind == "bounds":
            least, most = (summaries[:, :, i].transpose(1, 2) for i in (0, 1))
            product = rows.clamp(max=0) @ least + rows.clamp(min=0) @ most
        else:
            product = rows @ summaries[:, :, 0].transpose(1, 2)
        scores.append(product.amax(1))
    return torch.stack(scores)


def block_scores(
    case: Case, candidates: torch.Tensor, distance: int, sizes: tuple[int, int, int]
) -> torch.Tensor:
    """Scores of blocks, with sizes (block_size_q, block_size_k, query_stride)."""
    block_size_q, block_size_k, query_stride = sizes
    pages, heads = case.kv.k_pages, case.kv.k_pages.shape[1]
    scores = []
    for block, queries in enumerate(case.q.split(block_size_q)):
        rows = pooled_rows(queries, case.rope, distance, heads, query_stride).to(case.q.dtype)
        for head in range(heads):
            listed = candidates[block, head].long().clamp(min=0)
            keys = gather_pages(pages[:, head : head + 1], case.kv.page_table, listed)
            product = rows[head] @ keys.flatten(0, 2).transpose(0, 1)
            scores.append(product.amax(0).unflatten(0, (-1, block_size_k)).amax(1))
    return torch.stack(scores).unflatten(0, (-1, heads))


def votes(case: Case, distance: int, scale: float) -> torch.Tensor:
    """[N, num_heads, pages of the sequence], the maximum of each page."""
    heads, page_size = case.kv.k_pages.shape[1:3]
    rows = rotate(case.q, case.rope.cos[distance], case.rope.sin[distance]).to(case.q.dtype)
    rows = rows.unflatten(1, (heads, -1))
    logits = torch.einsum("nhgd,khd->nhgk", rows, case.keys).float() * scale
    return torch.stack([part.amax(-1) for part in logits.split(page_size, -1)], -1).flatten(1, 2)
