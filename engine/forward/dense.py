"""Dense attention of a chunk by the fused attention of PyTorch, where that is the fastest.

It needs rotated keys in one piece, so it is for contexts that are short enough to copy.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from hipcli.engine.forward.step import StepInput
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
    return causal_attention(q, k, v, step.softmax_scale)


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float
) -> torch.Tensor:
    """Attend the last T of n tokens to all tokens up to their own.

    Args:
        q: [T, num_heads, head_dim], rotated.
        k, v: [n, num_kv_heads, head_dim], keys rotated.
        softmax_scale: factor of q.k.

    Returns:
        [T, num_heads, head_dim].
    """
    queries, keys, values = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    # A single query sees everything; that needs no mask.
    alone, whole = len(q) == 1, len(q) == len(k)
    mask = None
    if not (alone or whole):
        # Imported where it is used: it brings the compiler with it, a second and a half.
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(len(q), len(k))
    out = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=whole and not alone,
        scale=softmax_scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return out[0].transpose(0, 1)
