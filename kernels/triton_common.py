"""What the Triton kernels share: small jit helpers, and what a launch demands.

Rows are queries: one (query token, head of the group) each. Channels beyond head_dim pad a
tile to a power of two and hold zeros.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.jit import JITFunction

from .types import PagedKV

HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_GROUP = 16
FP8_CAPABILITY = (8, 9)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _probe():
    pass


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (decided when Triton is first imported)."""
    return not isinstance(_probe, JITFunction)


def require_launchable(*tensors: torch.Tensor) -> None:
    """Raise unless Triton can run on these tensors.

    Raises:
        TypeError: CPU tensors without the interpreter.
        NotImplementedError: bf16 in the interpreter, whose arithmetic is wrong there; fp8 on a
            GPU that has no such conversions.
    """
    for tensor in tensors:
        if tensor.device.type == "cpu" and not interpreted():
            raise TypeError("the triton backend needs CUDA tensors, received tensors on the CPU")
        if interpreted() and tensor.dtype == torch.bfloat16:
            raise NotImplementedError(
                f"Triton's interpreter computes {tensor.dtype} wrongly: use float16 or float32"
            )
        fp8 = tensor.dtype == torch.float8_e4m3fn
        if fp8 and tensor.device.type == "cuda" and _capability(tensor.device) < FP8_CAPABILITY:
            raise NotImplementedError(
                f"float8_e4m3fn needs compute capability 8.9, {tensor.device} has "
                f"{'.'.join(map(str, _capability(tensor.device)))}"
            )


def require_supported(head_dim: int, num_heads: int, num_kv_heads: int) -> None:
    """Raise NotImplementedError for a head_dim or group no kernel was tested with."""
    if head_dim not in HEAD_DIMS:
        raise NotImplementedError(
            f"head_dim {head_dim}: the triton backend has {', '.join(map(str, HEAD_DIMS))}"
        )
    if num_heads // num_kv_heads > MAX_GROUP:
        raise NotImplementedError(
            f"{num_heads // num_kv_heads} query heads a KV head: the triton backend has 1 to "
            f"{MAX_GROUP}"
        )


@cache
def _shared_bytes(index: int) -> int:
    return torch.cuda.get_device_properties(index).shared_memory_per_block_optin


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def shared_bytes(device: torch.device) -> int:
    """Shared memory one program may have; Hopper's where there is no device to ask."""
    if device.type != "cuda":
        return 232448
    return _shared_bytes(device.index if device.index is not None else torch.cuda.current_device())


def pages_and_scales(kv: PagedKV) -> tuple[torch.Tensor, ...]:
    """Keys, values and the scales of both for a kernel; pages stand in for scales they lack."""
    k_scales = kv.k_pages if kv.k_scales is None else kv.k_scales
    return kv.k_pages, kv.v_pages, k_scales, kv.v_pages if kv.v_scales is None else kv.v_scales


def head_table(page_table: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    """A page table for `load_slots`, and the elements from one head's row to the next's.

    None where all heads share the table: what is compiled then knows of no other kind.
    """
    return page_table, page_table.stride(0) if page_table.dim() == 2 else None


def scale_stride(kv: PagedKV) -> int:
    """Elements from one slot's scales to the next's; those of its heads are neighbours."""
    return 0 if kv.k_scales is None else kv.k_scales.stride(0)


def dot_precision(dtype: torch.dtype) -> str:
    """fp32 products are exact; the 16-bit types do not look at this."""
    return "ieee" if dtype == torch.float32 else "tf32"


def pad_channels(channels: int) -> int:
    """Smallest power of two that holds the channels and that a matrix product accepts."""
    return max(16, triton.next_power_of_2(channels))


def early_options(early: bool) -> dict[str, bool]:
    """Launch options of a kernel that begins with `begin(EARLY=True)`."""
    return {"launch_pdl": True} if early else {}


@triton.jit
def begin(EARLY: tl.constexpr):
    """The first statement of a kernel that may be launched before its predecessor has ended.

    It waits for everything the predecessor writes, then lets the successor be launched: what
    overlaps is the launch itself. Needs compute capability 9.0.
    """
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def rotated_rows(
    q,
    q_strides: tl.constexpr,
    token,
    token_end,
    head,
    cos_row,
    sin_row,
    HEAD_DIM: tl.constexpr,
    D_PAD: tl.constexpr,
    ROTARY: tl.constexpr,
    RUN: tl.constexpr,
):
    """fp32 [R, D_PAD]: mean of up to RUN queries from `token` [R] on, rotated to one position.

    `token_end` bounds every run; a rotation is linear, so it commutes with the mean.
    """
    HALF: tl.constexpr = ROTARY // 2
    channel = tl.arange(0, D_PAD)
    rotary = channel < ROTARY
    partner = tl.where(channel < HALF, channel + HALF, channel - HALF)
    partner = tl.where(rotary, partner, channel)
    cos = tl.load(cos_row + channel, mask=rotary, other=1.0).to(tl.float32)
    sin = tl.load(sin_row + channel, mask=rotary, other=0.0).to(tl.float32)
    sin = tl.where(channel < HALF, -sin, sin)
    base = q + head.to(tl.int64) * q_strides[1]
    total = tl.zeros([token.shape[0], D_PAD], dtype=tl.float32)
    for step in tl.static_range(RUN):
        rows = (base + (token + step).to(tl.int64) * q_strides[0])[:, None]
        mask = (token + step < token_end)[:, None] & (channel < HEAD_DIM)[None, :]
        own = tl.load(rows + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        other = tl.load(rows + partner[None, :], mask=mask, other=0.0).to(tl.float32)
        total += own * cos[None, :] + other * sin[None, :]
    count = tl.minimum(token_end - token, RUN).to(tl.float32)
    return total / count[:, None]


@triton.jit
def table_of_head(page_table, head):
    """Pointer to a KV head's first entry in a `head_table`."""
    table, stride = page_table
    if stride is not None:
        table += head.to(tl.int64) * stride
    return table


@triton.jit
def load_slots(page_table, head, page, mask=None):
    """Slots of logical pages of a KV head, 0 where `mask` is off or its own table has none.

    `page_table` is a `head_table`. Slot 0 exists, so that nothing faults where a caller broke
    the promise that all pages are here.
    """
    table = table_of_head(page_table, head)
    slot = tl.load(table + page) if mask is None else tl.load(table + page, mask=mask, other=0)
    if page_table[1] is not None:
        slot = tl.maximum(slot, 0)
    return slot


@triton.jit
def has_slot(page_table, head, page, wanted):
    """Whether one logical page is wanted and has a slot: what has none is not written."""
    if page_table[1] is not None:
        at = table_of_head(page_table, head) + page
        wanted = wanted & (tl.load(at, mask=wanted, other=-1) >= 0)
    return wanted


@triton.jit
def load_channels(
    rows, valid, FIRST: tl.constexpr, COUNT: tl.constexpr, PAD: tl.constexpr, MASKED: tl.constexpr
):
    """[R, PAD] tile of channels FIRST.. of row pointers; no mask where none is needed."""
    channel = tl.arange(0, PAD)
    at = rows[:, None] + (FIRST + channel)[None, :]
    if MASKED:
        mask = valid[:, None] & (channel < COUNT)[None, :]
        return tl.load(at, mask=mask, other=0.0)
    elif COUNT != PAD:
        return tl.load(at, mask=(channel < COUNT)[None, :], other=0.0)
    else:
        return tl.load(at)


@triton.jit
def load_scales(at, valid, MASKED: tl.constexpr):
    """fp32 [R] at pointers; 0 where a row is not valid: its page may never have been written."""
    if MASKED:
        return tl.load(at, mask=valid, other=0.0)
    else:
        return tl.load(at)


@triton.jit
def turn_pairs(lo, hi, cos, sin, DTYPE: tl.constexpr):
    """Both halves [R, HALF_PAD] of rows, turned, side by side [R, 2 * HALF_PAD] in DTYPE.

    Joining the halves moves nothing: a thread keeps both values of a pair.
    """
    lo32 = lo.to(tl.float32)
    hi32 = hi.to(tl.float32)
    first = (lo32 * cos - hi32 * sin).to(DTYPE)
    second = (hi32 * cos + lo32 * sin).to(DTYPE)
    pairs = tl.permute(tl.join(first, second), (0, 2, 1))
    return tl.reshape(pairs, [lo.shape[0], 2 * lo.shape[1]])


@triton.jit
def last_arrival(counter, expected):
    """Whether this program is the last of `expected` to arrive; it resets the counter to zero.

    What the others stored before they arrived is then visible to this program.
    """
    # Every thread's stores must precede the one thread that announces them.
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = arrived == expected - 1
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def load_rotated(
    rows,
    valid,
    cos,
    sin,
    position,
    cos_stride,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    DTYPE: tl.constexpr,
    MASKED: tl.constexpr,
    factor=None,
):
    """Rotary channels [R, 2 * HALF_PAD] of rows, turned, in DTYPE: halves side by side.

    Each half is loaded once; the tables' second half repeats the first and is not read. A
    `factor` [R] multiplies the rows.
    """
    lo = load_channels(rows, valid, 0, HALF, HALF_PAD, MASKED)
    hi = load_channels(rows, valid, HALF, HALF, HALF_PAD, MASKED)
    table = position * cos_stride
    c = load_channels(cos + table, valid, 0, HALF, HALF_PAD, False).to(tl.float32)
    s = load_channels(sin + table, valid, 0, HALF, HALF_PAD, False).to(tl.float32)
    if factor is not None:
        c *= factor[:, None]
        s *= factor[:, None]
    return turn_pairs(lo, hi, c, s, DTYPE)
