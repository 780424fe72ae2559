"""Dense attention of a chunk by the fused attention of PyTorch, where that is the fastest.

It needs rotated keys in one piece, so it is for contexts that are short enough to copy.
"""

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from hipcli.engine.step import StepInput
from hipcli.kernels.rope import rope


def fused_attention(
    layer: int, q: torch.Tensor, step: StepInput, start: int, end: int
) -> torch.Tensor:
    """Attend queries at [start, end) to every key before and including their own.

    Args:
        layer: which layer.
        q: [end - start, num_heads, head_dim], un-rotated.
        step: the pass; its store holds the pages of all `end` tokens, in order.
        start, end: positions.

    Returns:
        [end - start, num_heads, head_dim].
    """
    tables, backend = step.tables.first(end), step.store.backend
    k, v = step.store.tokens(layer, end)
    positions = torch.arange(end, device=q.device)
    k = rope(k, positions, tables, backend=backend)
    q = rope(q, positions[start:], tables, backend=backend)
    queries, keys, values = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    whole = start == 0
    out = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=None if whole else causal_lower_right(end - start, end),
        is_causal=whole,
        scale=step.softmax_scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)
