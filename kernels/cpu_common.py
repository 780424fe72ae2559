"""What the CPU implementations share: gathered pages, query heads folded into rows, RoPE in place.

Rows are queries: all heads of a KV head's group, each with its tokens in order, so that one batched
matrix product a KV head serves the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, prod

import torch
from torch.nn.functional import pad

from .cpu_codes import decode_into, decoded_blocks, page_scales
from .types import PagedKV, RopeTables

# Fewer rows than this do not fill the tiles of the fused attention.
FUSED_ROWS = 16
# Scores of up to this many keys are products of their own: faster where they fit in a cache.
MAX_PRODUCT_KEYS = 8192


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate `x` in place by half-split RoPE, in its own precision.

    Args:
        x: [..., N, head_dim].
        cos, sin: [N, rotary_dim] or [rotary_dim]; channels beyond rotary_dim stay as they are.

    Returns:
        `x`.
    """
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half].to(x.dtype), sin[..., :half].to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    kept = first.clone()
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(kept, sin)
    return x


@dataclass(frozen=True, slots=True)
class RowTables:
    """RoPE tables in the precision of the keys, made once for a call.

    Args:
        cos: [n, rotary_dim].
        sin: [n, rotary_dim], the first half negated: a row rotates as row * cos + (the row with
            its halves changed over) * sin.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, rope: RopeTables, num_positions: int, dtype: torch.dtype) -> RowTables:
        """The first positions of the tables, or all there are."""
        cos, sin = rope.cos[:num_positions].to(dtype), rope.sin[:num_positions].to(dtype)
        half = sin.shape[-1] // 2
        return cls(cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1))

    def rotate_into(self, out: torch.Tensor, x: torch.Tensor, start: int) -> torch.Tensor:
        """Rotate rows that stand side by side from position `start` on.

        Args:
            out: where they go; neither `x` nor a part of it.
            x: [..., N, head_dim]; channels beyond rotary_dim stay as they are.

        Returns:
            `out`.
        """
        at = slice(start, start + x.shape[-2])
        cos, sin = self.cos[at], self.sin[at]
        rotary_dim = cos.shape[-1]
        if rotary_dim == x.shape[-1]:
            # Whole rows: loops over half a row are too short to be worth their start.
            return torch.mul(x, cos, out=out).addcmul_(x.roll(rotary_dim // 2, -1), sin)
        turned, rest = out[..., :rotary_dim], x[..., :rotary_dim]
        torch.mul(rest, cos, out=turned).addcmul_(rest.roll(rotary_dim // 2, -1), sin)
        out[..., rotary_dim:] = x[..., rotary_dim:]
        return out

    def rotate_at(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate rows [..., head_dim] to positions int64 [...]; channels beyond rotary_dim stay."""
        cos, sin = self.cos[positions], self.sin[positions]
        rotary_dim = cos.shape[-1]
        turned = x[..., :rotary_dim]
        turned = turned * cos + turned.roll(rotary_dim // 2, -1) * sin
        return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), -1)


@dataclass(slots=True)
class RowBuffers:
    """Memory that `attend_rows` and its callers write to again and again.

    A new tensor of some megabytes for every query block costs more in page faults than the
    products that fill it.
    """

    _flat: dict[str, torch.Tensor] = field(default_factory=dict)
    _tails: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != dtype:
            flat = self._flat[name] = torch.empty(size, dtype=dtype)
        return flat[:size].view(shape)

    def keys(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Room for joined keys, in the dtype of `like`; its old contents are lost."""
        return self._take("keys", shape, like.dtype)

    def values(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """The same for values."""
        return self._take("values", shape, like.dtype)

    def scores(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """The same for scores."""
        return self._take("scores", shape, like.dtype)

    def gathered(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """The same for blocks as they come out of the pages."""
        return self._take("gathered", shape, like.dtype)

    def decoded(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The same for what the codes among them stand for."""
        return self._take("decoded", shape, dtype)

    def tail(self, rows: int, group: int, dtype: torch.dtype) -> torch.Tensor | None:
        """`causal_tail`, made once a size; None for one row, which sees everything."""
        if rows == 1:
            return None
        if (rows, group) not in self._tails:
            self._tails[rows, group] = causal_tail(rows, group, dtype)
        return self._tails[rows, group]


def fold_heads(q: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[T, num_heads, head_dim] -> [num_kv_heads, group * T, head_dim], rows head by head."""
    length, num_heads, head_dim = q.shape
    group = num_heads // num_kv_heads
    folded = q.unflatten(1, (num_kv_heads, group)).permute(1, 2, 0, 3)
    return folded.reshape(num_kv_heads, group * length, head_dim)


def unfold_heads(out: torch.Tensor, length: int) -> torch.Tensor:
    """[num_kv_heads, group * T, ...] -> [T, num_heads, ...]."""
    unfolded = out.unflatten(1, (-1, length)).transpose(0, 2)
    return unfolded.transpose(1, 2).flatten(1, 2)


def block_table(pages: torch.Tensor, block_size_k: int) -> torch.Tensor | None:
    """Pages as one long table whose rows are memory: [n, block_size_k * head_dim], a view.

    None where a block is not one run of memory. `block_rows` says which row is which block. Where
    scales lie between two pages rows begin within one another: every `_row_step`, a block.
    """
    num_slots, num_kv_heads, page_size, head_dim = pages.shape
    unit = block_size_k * head_dim
    slot_stride, head_stride, token_stride, _ = pages.stride()
    if token_stride != head_dim:
        return None
    step = _row_step(pages, block_size_k)
    last = (num_slots - 1) * slot_stride + (num_kv_heads - 1) * head_stride
    last += (page_size // block_size_k - 1) * unit
    return pages.as_strided((last // step + 1, unit), (step, 1))


def _row_step(pages: torch.Tensor, block_size_k: int) -> int:
    """Elements from one row of `block_table` to the next."""
    return gcd(block_size_k * pages.shape[3], *pages.stride()[:2])


def block_rows(
    pages: torch.Tensor, page_table: torch.Tensor, block_indices: torch.Tensor, block_size_k: int
) -> torch.Tensor:
    """Rows of `block_table` that hold blocks [..., num_kv_heads, n], none -1: int64, same shape."""
    _, num_kv_heads, page_size, head_dim = pages.shape
    per_page, step = page_size // block_size_k, _row_step(pages, block_size_k)
    slot_stride, head_stride = pages.stride()[:2]
    blocks = block_indices.long()
    rows = page_table[blocks // per_page].long().mul_(slot_stride // step)
    if per_page > 1:
        rows += blocks % per_page * (block_size_k * head_dim // step)
    return rows.add_(torch.arange(num_kv_heads).unsqueeze(1) * (head_stride // step))


def gather_blocks(
    pages: torch.Tensor, page_table: torch.Tensor, block_indices: torch.Tensor, block_size_k: int
) -> torch.Tensor:
    """Copy blocks of keys, or of values, out of the pages.

    Args:
        pages: [P, num_kv_heads, page_size, head_dim]; may be a strided view.
        page_table: int32 [num_pages].
        block_indices: [num_kv_heads, n] block numbers in units of `block_size_k` tokens, none -1.
        block_size_k: tokens of a block; divides page_size.

    Returns:
        [num_kv_heads, n * block_size_k, head_dim].
    """
    _, num_kv_heads, page_size, head_dim = pages.shape
    table = block_table(pages, block_size_k)
    if table is not None:
        rows = block_rows(pages, page_table, block_indices, block_size_k)
        return table.index_select(0, rows.flatten()).view(num_kv_heads, -1, head_dim)
    per_page = page_size // block_size_k
    blocks = block_indices.long()
    slots, heads = page_table.long()[blocks // per_page], torch.arange(num_kv_heads).unsqueeze(1)
    split = pages.unflatten(2, (per_page, block_size_k))
    return split[slots, heads, blocks % per_page].flatten(1, 2)


def gather_range(
    pages: torch.Tensor,
    page_table: torch.Tensor,
    start: int,
    end: int,
    dtype: torch.dtype,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy tokens [start, end) out of the pages.

    Args:
        pages: [P, num_kv_heads, page_size, head_dim], in `dtype` or codes; may be a strided view.
        page_table: int32 [num_pages].
        start, end: tokens.
        dtype: of the copies.
        scales: fp32 [P, num_kv_heads] of codes, else None.

    Returns:
        [num_kv_heads, end - start, head_dim].
    """
    page_size = pages.shape[2]
    first, last = start // page_size, -(-end // page_size)
    span = logical_pages(pages, page_table, first, last).transpose(0, 1)
    # A reshape may be a view of the store; callers rotate the copy in place.
    copied = torch.empty(span.shape, dtype=dtype)
    if scales is None:
        copied.copy_(span)
    else:
        of_pages = logical_pages(scales, page_table, first, last).transpose(0, 1)
        decode_into(copied, span, of_pages[:, :, None, None])
    offset = start - first * page_size
    return copied.flatten(1, 2)[:, offset : offset + end - start]


def logical_pages(
    pages: torch.Tensor, page_table: torch.Tensor, first: int, last: int
) -> torch.Tensor:
    """Logical pages [first, last), or their scales: a view where their slots follow one another,
    else a copy."""
    slots = page_table[first:last]
    if slots.numel() < 2 or bool((slots.diff() == 1).all()):
        start = int(slots[0]) if slots.numel() else 0
        return pages[start : start + slots.numel()]
    return pages.index_select(0, slots.long())


def pooled_rows(
    q: torch.Tensor,
    rope: RopeTables,
    distance: int,
    num_kv_heads: int,
    block_size_q: int,
    query_stride: int,
) -> torch.Tensor:
    """Average runs of `query_stride` queries inside each query block, rotated to `distance`.

    Args:
        q: [N, num_heads, head_dim], un-rotated.

    Returns:
        [num_kv_heads, num_q_blocks, rows, head_dim] in q's dtype, rows = runs a block * group. A
        short last block repeats its first run: a maximum does not notice.
    """
    length, num_heads, head_dim = q.shape
    blocks = -(-length // block_size_q)
    runs = -(-min(block_size_q, length) // query_stride)
    block_size_q = min(block_size_q, length)
    missing = blocks * block_size_q - length
    inside = runs * query_stride - block_size_q
    grid = pad(q, (0, 0, 0, 0, 0, missing)) if missing else q
    grid = grid.reshape(blocks, block_size_q, num_heads, head_dim)
    grid = pad(grid, (0, 0, 0, 0, 0, inside)) if inside else grid
    total = grid.unflatten(1, (runs, query_stride)).float().sum(2)
    lengths = torch.full((blocks,), block_size_q)
    lengths[-1] -= missing
    counts = lengths.unsqueeze(1) - torch.arange(runs) * query_stride
    counts = counts.clamp(max=query_stride)
    pooled = total / counts.clamp(min=1)[:, :, None, None]
    pooled = torch.where((counts > 0)[:, :, None, None], pooled, pooled[:, :1]).to(q.dtype)
    rows = pooled.unflatten(2, (num_kv_heads, -1)).permute(2, 0, 1, 3, 4).flatten(2, 3)
    return rotate_(rows.contiguous(), rope.cos[distance], rope.sin[distance])


def causal_tail(rows: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [group * rows, rows] of the last keys, which are the rows' own."""
    return torch.full((rows, rows), float("-inf"), dtype=dtype).triu_(1).repeat(group, 1)


def attend_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tail: torch.Tensor | None,
    buffers: RowBuffers | None = None,
    return_lse: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Softmax attention of rows that see every key but for a causal tail.

    Args:
        q: [num_kv_heads, rows, head_dim], scaled and rotated.
        k, v: [num_kv_heads, num_keys, head_dim].
        tail: additive [rows, n] for the last n keys in q's dtype, or None.
        buffers: where scores are kept; None allocates.
        return_lse: without, the log-sum-exp is None and costs nothing.

    Returns:
        out [num_kv_heads, rows, head_dim] and lse fp32 [num_kv_heads, rows].
    """
    num_keys = k.shape[1]
    if num_keys > MAX_PRODUCT_KEYS and q.shape[1] >= FUSED_ROWS:
        # No buffer of scores grows with the context: PyTorch's fused attention goes tile by tile.
        mask = None
        if tail is not None:
            mask = q.new_zeros(q.shape[1], num_keys)
            mask[:, num_keys - tail.shape[1] :] = tail
            mask = mask[None, None]
        run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, fused_lse = run(q[None], k[None], v[None], attn_mask=mask, scale=1.0)
        return out[0], fused_lse[0].float()
    # Strided batches take a path of the matrix library several times slower than a copy.
    k, v = k.contiguous(), v.contiguous()
    scores = (buffers or RowBuffers()).scores((*q.shape[:2], num_keys), q)
    torch.bmm(q, k.transpose(1, 2), out=scores)
    if tail is not None:
        scores[:, :, num_keys - tail.shape[1] :] += tail
    peak = scores.amax(-1).float() if return_lse else None
    weights = torch.softmax(scores, dim=-1, out=scores)
    # The largest weight is exp(largest score - lse): two maxima cost less than another exp.
    lse = None if peak is None else peak - weights.amax(-1).float().log()
    return torch.bmm(weights, v), lse


def key_range(
    kv: PagedKV, start: int, end: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of keys and values of tokens [start, end), in `dtype`."""
    return (
        gather_range(kv.k_pages, kv.page_table, start, end, dtype, kv.k_scales),
        gather_range(kv.v_pages, kv.page_table, start, end, dtype, kv.v_scales),
    )


def key_blocks(
    kv: PagedKV, block_indices: torch.Tensor, block_size_k: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of keys and values of blocks, in `dtype`, as `gather_blocks` lays them out."""
    k = gather_blocks(kv.k_pages, kv.page_table, block_indices, block_size_k)
    v = gather_blocks(kv.v_pages, kv.page_table, block_indices, block_size_k)
    if kv.k_scales is None or kv.v_scales is None:
        return k, v
    pages = block_indices // (kv.k_pages.shape[2] // block_size_k)
    return (
        decoded_blocks(k, page_scales(kv.k_scales, kv.page_table, pages), dtype),
        decoded_blocks(v, page_scales(kv.v_scales, kv.page_table, pages), dtype),
    )
