"""Sparse attention of a chunk of queries on a CPU: batched matrix products, no large mask.

Faster than `reference.py` because it gathers whole pages, folds the query heads of a KV head into
rows and keeps the scores of one query block in cache; checked against it in the tests.
"""

import torch

# Scores of more keys than this are computed tile by tile with an online softmax, so that
# no buffer grows with the context.
MAX_SCORE_KEYS = 8192


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x` in place by half-split RoPE.

    Args:
        x: [..., N, head_dim].
        cos, sin: [N, rotary_dim]; channels beyond rotary_dim stay as they are.

    Returns:
        `x`.
    """
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    first, second = x[..., :half], x[..., half : 2 * half]
    kept = first.clone()
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(kept, sin)
    return x


def gather_blocks(
    pages: torch.Tensor, block_indices: torch.Tensor, block_size_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy blocks of keys and values out of the pages.

    Args:
        pages: [num_pages, 2, num_kv_heads, page_size, head_dim], contiguous.
        block_indices: [num_kv_heads, n] block numbers in units of `block_size_k` tokens.
        block_size_k: tokens of a block; divides page_size.

    Returns:
        keys and values, each [num_kv_heads, n * block_size_k, head_dim].
    """
    _, _, num_kv_heads, page_size, head_dim = pages.shape
    per_page = page_size // block_size_k
    flat = pages.view(-1, block_size_k * head_dim)
    heads = torch.arange(num_kv_heads, device=pages.device).unsqueeze(1)
    page, inner = block_indices // per_page, block_indices % per_page
    rows = (page * (2 * num_kv_heads) + heads) * per_page + inner
    shape = (num_kv_heads, -1, head_dim)
    keys = flat.index_select(0, rows.reshape(-1)).view(shape)
    values = flat.index_select(0, (rows + num_kv_heads * per_page).reshape(-1)).view(shape)
    return keys, values


def contiguous_range(
    pages: torch.Tensor, start: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy tokens [start, end) of keys and values: each [num_kv_heads, end - start, head_dim]."""
    _, _, num_kv_heads, page_size, head_dim = pages.shape
    first, last = start // page_size, -(-end // page_size)
    span = pages[first:last].permute(1, 2, 0, 3, 4)
    # A reshape may be a view of the store; callers rotate the copy in place.
    span = torch.empty(span.shape, dtype=pages.dtype).copy_(span)
    span = span.view(2, num_kv_heads, -1, head_dim)
    offset = start - first * page_size
    return span[0, :, offset : offset + end - start], span[1, :, offset : offset + end - start]


def attend_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: torch.Tensor | None
) -> torch.Tensor:
    """Softmax attention of rows that all see every key but for a causal tail.

    Args:
        q: [num_kv_heads, rows, head_dim], scaled and rotated.
        k, v: [num_kv_heads, num_keys, head_dim].
        causal: [rows, tail] additive mask of the last `tail` keys, or None.

    Returns:
        [num_kv_heads, rows, head_dim].
    """
    num_keys = k.shape[1]
    if num_keys <= MAX_SCORE_KEYS:
        scores = torch.bmm(q, k.transpose(1, 2))
        if causal is not None:
            scores[:, :, num_keys - causal.shape[1] :] += causal
        return torch.bmm(torch.softmax(scores, dim=-1), v)
    peak = q.new_full((*q.shape[:2], 1), float("-inf"), dtype=torch.float32)
    total = torch.zeros_like(peak)
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    for start in range(0, num_keys, MAX_SCORE_KEYS):
        end = min(start + MAX_SCORE_KEYS, num_keys)
        scores = torch.bmm(q, k[:, start:end].transpose(1, 2)).float()
        if causal is not None:
            tail_start = num_keys - causal.shape[1]
            overlap = max(start, tail_start)
            if overlap < end:
                scores[:, :, overlap - start :] += causal[
                    :, overlap - tail_start : end - tail_start
                ]
        new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
        # A row may see nothing of a tile: keep exp(-inf - -inf) out.
        shift = torch.where(new_peak.isinf(), 0.0, new_peak)
        weights = torch.exp(scores - shift)
        decay = torch.exp(peak - shift)
        total = total * decay + weights.sum(-1, keepdim=True)
        out = out * decay + torch.bmm(weights.to(v.dtype), v[:, start:end]).float()
        peak = new_peak
    return (out / total).to(q.dtype)


def causal_tail(rows: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [group * rows, rows] of a block's own keys, rows ordered head by head."""
    mask = torch.full((rows, rows), float("-inf"), dtype=dtype).triu_(1)
    return mask.repeat(group, 1)


def fold_heads(q: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[T, num_heads, head_dim] -> [num_kv_heads, group * T, head_dim], rows head by head."""
    length, num_heads, head_dim = q.shape
    group = num_heads // num_kv_heads
    folded = q.view(length, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    return folded.reshape(num_kv_heads, group * length, head_dim)


def unfold_heads(out: torch.Tensor, length: int) -> torch.Tensor:
    """[num_kv_heads, group * T, head_dim] -> [T, num_heads, head_dim]."""
    num_kv_heads, rows, head_dim = out.shape
    group = rows // length
    unfolded = out.view(num_kv_heads, group, length, head_dim).permute(2, 0, 1, 3)
    return unfolded.reshape(length, num_kv_heads * group, head_dim)


def sparse_prefill(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_indices: torch.Tensor | None,
    window_starts: list[int],
    tables: tuple[torch.Tensor, torch.Tensor],
    *,
    query_start: int,
    sink_tokens: int,
    block_size_k: int,
    softmax_scale: float,
) -> torch.Tensor:
    """Attend with a chunk of queries, page by page of 64 queries.

    Query blocks lie on the grid of pages: block b holds the queries of page
    `query_start // page_size + b`, the first and the last one possibly in part.

    Args:
        q: [T, num_heads, head_dim], un-rotated.
        pages: [num_pages, 2, num_kv_heads, page_size, head_dim], contiguous, keys un-rotated; the
            chunk's own tokens are in them.
        block_indices: [num_q_blocks, num_kv_heads, n] selected blocks, ascending, in
            [sink_tokens, window_start); ignored for blocks whose window_start is 0. None: n = 0.
        window_starts: per query block the first token of its window, page aligned; 0 means dense.
        tables: cos, sin [num_positions, rotary_dim] of at least the packed length.
        query_start: position of the first query.
        sink_tokens: first tokens that every query attends, a multiple of block_size_k.
        block_size_k: tokens of a selected block.
        softmax_scale: factor of q.k.

    Returns:
        [T, num_heads, head_dim].
    """
    length, num_heads, head_dim = q.shape
    num_kv_heads, page_size = pages.shape[2], pages.shape[3]
    group = num_heads // num_kv_heads
    end = query_start + length
    cos, sin = tables
    selected = 0 if block_indices is None else block_indices.shape[2] * block_size_k
    sparse_starts = [start for start in window_starts if start > 0]
    packed = sink_tokens + selected
    sinks = torch.arange(sink_tokens // block_size_k).expand(num_kv_heads, -1)
    if sparse_starts:
        # All windows of the chunk share one copy, rotated once: window key j of the earliest
        # window stands at `packed`, and each later block shifts its own sinks and selection.
        origin = min(sparse_starts)
        window_k, window_v = contiguous_range(pages, origin, end)
        window_k = rotate_(window_k, *_rows(cos, sin, packed, packed + end - origin))
    if len(sparse_starts) < len(window_starts):
        dense_end = min(end, (query_start // page_size + window_starts.count(0)) * page_size)
        dense_k, dense_v = contiguous_range(pages, 0, dense_end)
        dense_k = rotate_(dense_k, *_rows(cos, sin, 0, dense_end))
    out = torch.empty_like(q)
    first_block = query_start // page_size
    for block, window_start in enumerate(window_starts):
        low = max(query_start, (first_block + block) * page_size)
        high = min(end, (first_block + block + 1) * page_size)
        rows = fold_heads(q[low - query_start : high - query_start], num_kv_heads)
        rows = rows.view(num_kv_heads, group, high - low, head_dim)
        if window_start == 0:
            position = low
            keys, values = dense_k[:, :high], dense_v[:, :high]
        else:
            shift = window_start - origin
            position = packed + low - origin
            blocks = sinks if block_indices is None else torch.cat((sinks, block_indices[block]), 1)
            far_k, far_v = gather_blocks(pages, blocks, block_size_k)
            rotate_(far_k, *_rows(cos, sin, shift, shift + packed))
            near = slice(shift, high - origin)
            keys = torch.cat((far_k, window_k[:, near]), 1)
            values = torch.cat((far_v, window_v[:, near]), 1)
        row_cos, row_sin = _rows(cos, sin, position, position + high - low)
        rotate_(rows, row_cos * softmax_scale, row_sin * softmax_scale)
        if row_cos.shape[-1] < head_dim:
            rows[..., row_cos.shape[-1] :] *= softmax_scale
        mask = causal_tail(high - low, group, q.dtype)
        attended = attend_rows(rows.view(num_kv_heads, -1, head_dim), keys, values, mask)
        out[low - query_start : high - query_start] = unfold_heads(attended, high - low)
    return out


def _rows(
    cos: torch.Tensor, sin: torch.Tensor, start: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return cos[start:end], sin[start:end]
