"""Sparse attention of queries to those of their keys that lie here; the others lie elsewhere."""

from __future__ import annotations

import torch

from ..backends import implementation
from ..checks import check_attention
from ..types import PagedKV, RopeTables, SparsePlan


def shard_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    softmax_scale: float,
    *,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend the last N tokens of a sequence to the keys of their plan that lie in this shard.

    The same function as `sparse_prefill` for a page table with holes: a page of slot -1 lies in
    another shard. Its keys keep their packed positions and are not attended. So all shards are
    given the same plan, and `merge_partials` of their results is `sparse_prefill` of the whole.

    Args:
        q: [N, num_heads, head_dim], un-rotated; its token n stands at seqlen_k - N + n.
        kv: pages; -1 in the page table marks those of other shards.
        plan: per query block and KV head, over the pages of all shards.
        rope: tables with at least plan.local_tokens rows.
        seqlen_k: int32 [1], tokens of the sequence, wherever they lie.
        softmax_scale: factor of the logits.
        backend: a name of BACKENDS, or "auto".

    Returns:
        out [N, num_heads, head_dim] in q's dtype, normalised over the keys here, and lse fp32
        [N, num_heads]; zeros and -inf for a query with no key here.

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.
        NotImplementedError: Triton cannot run on these tensors (see `require_launchable`).

    Source: DistAttention of Infinite-LLM (2401.02669, section 4), in the normalised form.
    """
    check_attention(q, kv, plan, rope, seqlen_k, backend)
    run = implementation("shard_attention", backend, q.device)
    return run(q, kv, plan, rope, seqlen_k, softmax_scale)
