"""What a public operator demands of its arguments, said in its caller's words.

Wrong shapes and values raise `ValueError`, wrong dtypes and devices `TypeError`. No check
reads a tensor's values: that would wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .backends import resolve
from .types import PagedKV, PageIndex, RopeTables, SparsePlan

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of quantised pages, whose scales lie beside them.
CODE_DTYPES = (torch.float8_e4m3fn, torch.int8)
SUMMARIES_PER_PAGE = {"bounds": 2, "mean": 1}


def require_shape(name: str, tensor: torch.Tensor, expected: Sequence[int | None]) -> None:
    """Raise ValueError unless `tensor` has the expected shape (None accepts any size)."""
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected) and all(
        want is None or want == got for want, got in zip(expected, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name}: expected shape [{wanted}], received {list(shape)}")


def require_dtype(name: str, tensor: torch.Tensor, allowed: Sequence[torch.dtype]) -> None:
    """Raise TypeError unless the dtype is one of `allowed`."""
    if tensor.dtype not in allowed:
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise TypeError(f"{name}: expected dtype {wanted}, received {tensor.dtype}")


def require_same_device(**tensors: torch.Tensor | None) -> None:
    """Raise TypeError unless all tensors are on the first one's device."""
    given = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    first_name, first = given[0]
    for name, tensor in given[1:]:
        if tensor.device != first.device:
            raise TypeError(
                f"{name} is on {tensor.device}, {first_name} is on {first.device}: "
                "all tensors must be on one device"
            )


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless neighbouring channels are neighbours in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: the last dimension must be contiguous, its stride is {tensor.stride(-1)}"
        )


def require_positive(**values: int) -> None:
    """Raise ValueError unless every value is an int of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected an int of at least 1, received {value!r}")


def check_queries(q: torch.Tensor, num_kv_heads: int) -> None:
    """Check q [N, num_heads, head_dim] against the number of KV heads."""
    require_shape("q", q, (None, None, None))
    require_dtype("q", q, FLOAT_DTYPES)
    require_unit_stride("q", q)
    require_positive(**{"q's number of tokens": q.shape[0]})
    if q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q: its {q.shape[1]} heads are not a multiple of the {num_kv_heads} KV heads"
        )


def check_rope(rope: RopeTables, head_dim: int) -> None:
    """Check cos and sin [max_positions, rotary_dim] against head_dim."""
    require_shape("rope.cos", rope.cos, (None, None))
    require_shape("rope.sin", rope.sin, rope.cos.shape)
    require_dtype("rope.cos", rope.cos, FLOAT_DTYPES)
    require_dtype("rope.sin", rope.sin, (rope.cos.dtype,))
    require_unit_stride("rope.cos", rope.cos)
    if rope.sin.stride() != rope.cos.stride():
        raise ValueError("rope.sin: expected the strides of rope.cos")
    rotary_dim = rope.cos.shape[1]
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"rope.cos: rotary_dim must be even and in 2..head_dim ({head_dim}), "
            f"received {rotary_dim}"
        )


def check_distance(distance: int, rope: RopeTables) -> None:
    """Check that the fixed query distance is a row of the tables."""
    if not 0 <= distance < rope.cos.shape[0]:
        raise ValueError(
            f"distance: expected 0..{rope.cos.shape[0] - 1} (the tables' rows), received {distance}"
        )


def check_pages(kv: PagedKV, q: torch.Tensor, backend: str) -> None:
    """Check keys [P, num_kv_heads, page_size, head_dim] and their table against q."""
    k_pages, page_table = kv.k_pages, kv.page_table
    require_shape("k_pages", k_pages, (None, None, None, q.shape[-1]))
    require_dtype("k_pages", k_pages, (q.dtype, *CODE_DTYPES))
    require_unit_stride("k_pages", k_pages)
    check_scales("k_scales", kv.k_scales, k_pages, backend)
    check_page_table(page_table, k_pages.shape[1], resolve(backend, q.device))
    require_power_of_two("page_size (k_pages.shape[2])", k_pages.shape[2])


def check_page_table(page_table: torch.Tensor, num_kv_heads: int, backend: str) -> None:
    """Check a table of all heads [num_pages], or of each KV head [num_kv_heads, num_pages].

    Args:
        backend: a name of BACKENDS (not "auto").
    """
    if page_table.dim() == 2:
        require_shape("page_table", page_table, (num_kv_heads, None))
        if backend == "cpu":
            raise NotImplementedError("the cpu backend reads no page table of each KV head")
    elif page_table.dim() != 1:
        raise ValueError(
            f"page_table: expected shape [num_pages] or [{num_kv_heads} KV heads, num_pages], "
            f"received {list(page_table.shape)}"
        )
    require_dtype("page_table", page_table, (torch.int32,))
    require_unit_stride("page_table", page_table)


def check_scales(name: str, scales: torch.Tensor | None, pages: torch.Tensor, backend: str) -> None:
    """Check the scales fp32 [P, num_kv_heads] of pages, of codes or not."""
    quantised = pages.dtype in CODE_DTYPES
    if quantised != (scales is not None):
        raise ValueError(f"{name}: expected with float8_e4m3fn or int8 pages and only then")
    if scales is None:
        return
    if pages.dtype == torch.int8 and resolve(backend, pages.device) == "triton":
        raise NotImplementedError("the triton backend reads no int8 pages")
    require_shape(name, scales, pages.shape[:2])
    require_dtype(name, scales, (torch.float32,))
    require_unit_stride(name, scales)
    require_same_device(pages=pages, **{name: scales})


def require_power_of_two(name: str, value: int) -> None:
    """Raise ValueError unless value is a power of two."""
    if value < 1 or value & (value - 1):
        raise ValueError(f"{name}: expected a power of two, received {value}")


def check_paged_kv(kv: PagedKV, q: torch.Tensor, backend: str) -> None:
    """Check keys, values and page table against q."""
    check_pages(kv, q, backend)
    check_values(kv, backend)
    check_queries(q, kv.k_pages.shape[1])


def check_values(kv: PagedKV, backend: str) -> None:
    """Check values against keys."""
    require_shape("v_pages", kv.v_pages, kv.k_pages.shape)
    require_dtype("v_pages", kv.v_pages, (kv.k_pages.dtype,))
    require_unit_stride("v_pages", kv.v_pages)
    check_scales("v_scales", kv.v_scales, kv.v_pages, backend)
    k_scales, v_scales = kv.k_scales, kv.v_scales
    if k_scales is not None and v_scales is not None and k_scales.stride() != v_scales.stride():
        raise ValueError("v_scales: expected the strides of k_scales")


def check_seqlen(seqlen_k: torch.Tensor) -> None:
    """Check the length on the device: int32 [1]."""
    require_shape("seqlen_k", seqlen_k, (1,))
    require_dtype("seqlen_k", seqlen_k, (torch.int32,))


def check_counters(counters: torch.Tensor, needed: int) -> None:
    """Check scratch counters: int32, one dimension, at least `needed` long."""
    require_shape("counters", counters, (None,))
    require_dtype("counters", counters, (torch.int32,))
    require_unit_stride("counters", counters)
    if len(counters) < needed:
        raise ValueError(f"counters: expected at least {needed}, received {len(counters)}")


def num_q_blocks(num_tokens: int, block_size_q: int) -> int:
    """Blocks of block_size_q queries that cover num_tokens queries."""
    return -(-num_tokens // block_size_q)


def check_plan(plan: SparsePlan, q: torch.Tensor, kv: PagedKV, rope: RopeTables) -> None:
    """Check a plan's tensors and sizes against queries, pages and tables."""
    require_positive(
        block_size_q=plan.block_size_q,
        block_size_k=plan.block_size_k,
        local_tokens=plan.local_tokens,
    )
    page_size = kv.k_pages.shape[2]
    blocks = num_q_blocks(q.shape[0], plan.block_size_q)
    require_shape("plan.block_indices", plan.block_indices, (blocks, kv.k_pages.shape[1], None))
    require_dtype("plan.block_indices", plan.block_indices, (torch.int32,))
    require_unit_stride("plan.block_indices", plan.block_indices)
    require_shape("plan.window_starts", plan.window_starts, (blocks,))
    require_dtype("plan.window_starts", plan.window_starts, (torch.int32,))
    require_unit_stride("plan.window_starts", plan.window_starts)
    if page_size % plan.block_size_k:
        raise ValueError(
            f"plan.block_size_k: expected a divisor of the page size {page_size}, "
            f"received {plan.block_size_k}"
        )
    if plan.sink_tokens < 0 or plan.sink_tokens % page_size:
        raise ValueError(
            f"plan.sink_tokens: expected a multiple of the page size {page_size}, "
            f"received {plan.sink_tokens}"
        )
    if plan.local_tokens > rope.cos.shape[0]:
        raise ValueError(
            f"plan.local_tokens: {plan.local_tokens} packed positions need as many rows of "
            f"the RoPE tables, which have {rope.cos.shape[0]}"
        )


def check_attention(
    q: torch.Tensor,
    kv: PagedKV,
    plan: SparsePlan,
    rope: RopeTables,
    seqlen_k: torch.Tensor,
    backend: str,
    counters: torch.Tensor | None = None,
) -> None:
    """Check what attends pages by a plan: each argument, how they fit, and that all are on one
    device."""
    check_paged_kv(kv, q, backend)
    check_rope(rope, q.shape[2])
    check_plan(plan, q, kv, rope)
    check_seqlen(seqlen_k)
    require_same_device(
        q=q,
        k_pages=kv.k_pages,
        v_pages=kv.v_pages,
        page_table=kv.page_table,
        cos=rope.cos,
        block_indices=plan.block_indices,
        window_starts=plan.window_starts,
        seqlen_k=seqlen_k,
        counters=counters,
    )


def check_index(index: PageIndex, backend: str) -> None:
    """Check a page index by itself, for a backend of BACKENDS (not "auto")."""
    if index.kind not in SUMMARIES_PER_PAGE:
        raise ValueError(
            f"index.kind: expected one of {', '.join(SUMMARIES_PER_PAGE)}, received {index.kind!r}"
        )
    per_page = SUMMARIES_PER_PAGE[index.kind]
    require_shape("index.summaries", index.summaries, (None, None, per_page, None))
    require_dtype("index.summaries", index.summaries, (*FLOAT_DTYPES, torch.float8_e4m3fn))
    require_unit_stride("index.summaries", index.summaries)
    if backend == "triton" and not index.summaries.is_contiguous():
        raise ValueError("index.summaries: the triton backend expects a contiguous tensor")
    quantised = index.summaries.dtype == torch.float8_e4m3fn
    if quantised != (index.scales is not None):
        raise ValueError("index.scales: expected with float8_e4m3fn summaries and only then")
    if index.scales is not None:
        require_shape("index.scales", index.scales, index.summaries.shape[:2])
        require_dtype("index.scales", index.scales, (torch.float32,))
        require_unit_stride("index.scales", index.scales)
    require_power_of_two("index.page_size", index.page_size)
