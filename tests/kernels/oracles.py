"""Formulas in fp64, written plainly: what references and kernels are compared with."""

from __future__ import annotations

import torch

from hipcli.kernels.types import RopeTables, SparsePlan

from .builders import Case


def turned(x: torch.Tensor, position: int, rope: RopeTables) -> torch.Tensor:
    """x [..., head_dim] as pairs of complex numbers, turned by the tables' angle."""
    x = x.double()
    half = rope.cos.shape[1] // 2
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    angle = torch.complex(rope.cos[position, :half].double(), rope.sin[position, :half].double())
    pairs = pairs * angle
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :]), dim=-1)


def allowed(plan: SparsePlan, block: int, head: int, query: int) -> tuple[list[int], int]:
    """Tokens one query sees, in packed order, and its own packed position."""
    start = int(plan.window_starts[block])
    if start == 0:
        return list(range(query + 1)), query
    tokens = list(range(plan.sink_tokens))
    for index in plan.block_indices[block, head].tolist():
        if index >= 0:
            tokens += range(index * plan.block_size_k, (index + 1) * plan.block_size_k)
    packed = len(tokens) + query - start
    return tokens + list(range(start, query + 1)), packed


def attention(case: Case, plan: SparsePlan, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse attention one query and head at a time: out and lse in fp64."""
    shape = case.shape
    group = shape.num_heads // shape.num_kv_heads
    out = torch.zeros(case.q.shape, dtype=torch.float64, device=case.q.device)
    lse = torch.zeros(case.q.shape[:2], dtype=torch.float64, device=case.q.device)
    for n in range(shape.num_tokens):
        query = shape.seqlen_k - shape.num_tokens + n
        for head in range(shape.num_kv_heads):
            tokens, packed = allowed(plan, n // plan.block_size_q, head, query)
            keys = torch.stack(
                [turned(case.keys[t, head], p, case.rope) for p, t in enumerate(tokens)]
            )
            values = case.values[tokens, head].double()
            for h in range(head * group, (head + 1) * group):
                logits = keys @ turned(case.q[n, h], packed, case.rope) * scale
                lse[n, h] = logits.logsumexp(0)
                out[n, h] = logits.softmax(0) @ values
    return out, lse


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth||; NaN anywhere gives NaN."""
    difference = (value.double() - truth.double()).norm()
    return float(difference / truth.double().norm().clamp(min=1e-30))
