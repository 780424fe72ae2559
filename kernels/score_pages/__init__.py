"""Scores of whole pages for blocks of queries, from the page index alone."""

from __future__ import annotations

import torch

from ..backends import implementation, resolve
from ..checks import (
    check_distance,
    check_index,
    check_queries,
    check_rope,
    num_q_blocks,
    require_dtype,
    require_positive,
    require_same_device,
    require_shape,
    require_unit_stride,
)
from ..types import PageIndex, RopeTables


def score_pages(
    q: torch.Tensor,
    index: PageIndex,
    window_starts: torch.Tensor,
    rope: RopeTables,
    distance: int,
    block_size_q: int,
    query_stride: int,
    sink_tokens: int,
    *,
    backend: str = "auto",
) -> torch.Tensor:
    """Score every page between sinks and window for every query block and KV head.

    Queries are averaged over runs of query_stride tokens and rotated to one position, the
    distance, so keys stay un-rotated. A page's score is the maximum over the block's averaged
    queries and the heads of the group of q . mean ("mean"), or of the largest q . k that the
    page's box of keys allows ("bounds"). Logits are not scaled: only their order is used.

    Args:
        q: [N, num_heads, head_dim], un-rotated.
        index: summaries with num_pages >= the pages of the sequence.
        window_starts: int32 [num_q_blocks], tokens; 0 means the block selects nothing.
        rope: tables with more than `distance` rows.
        distance: position of the queries while the keys stand at 0.
        block_size_q: queries a block, tokens.
        query_stride: neighbouring queries averaged into one; 1 keeps all.
        sink_tokens: tokens at the start that are always attended, never scored.
        backend: a name of BACKENDS, or "auto".

    Returns:
        fp32 [num_q_blocks, num_kv_heads, num_pages]; -inf outside [sinks, window start).

    Raises:
        ValueError, TypeError: a shape, value, dtype or device does not fit.

    Source: the box bound is Quest's (2406.10774, section 3); queries pooled by 4 and one fixed
    distance are InfiniteHiP's (2502.08910, appendix), which searches keys instead of summaries.
    """
    check_index(index, resolve(backend, q.device))
    heads, _, _, head_dim = index.summaries.shape
    check_queries(q, heads)
    require_shape("q", q, (None, None, head_dim))
    check_rope(rope, head_dim)
    check_distance(distance, rope)
    require_positive(block_size_q=block_size_q, query_stride=query_stride)
    require_shape("window_starts", window_starts, (num_q_blocks(q.shape[0], block_size_q),))
    require_dtype("window_starts", window_starts, (torch.int32,))
    require_unit_stride("window_starts", window_starts)
    if sink_tokens < 0 or sink_tokens % index.page_size:
        raise ValueError(
            f"sink_tokens: expected a multiple of the page size {index.page_size}, "
            f"received {sink_tokens}"
        )
    require_same_device(q=q, summaries=index.summaries, window_starts=window_starts, cos=rope.cos)
    run = implementation("score_pages", backend, q.device)
    return run(q, index, window_starts, rope, distance, block_size_q, query_stride, sink_tokens)
