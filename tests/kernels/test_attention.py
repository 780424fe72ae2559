"""sparse_prefill and sparse_decode: reference against fp64, kernels against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.sparse_decode import sparse_decode
from hipcli.kernels.sparse_prefill import sparse_prefill
from hipcli.kernels.types import PagedKV

from .builders import Shape, make_case, make_plan
from .oracles import attention, relative_error

SCALE = 0.11
# Rounding of the two 16-bit operands and of the output, with room; fp32 is exact to rounding.
BUDGET = {torch.float32: 2e-6, torch.float16: 2e-3}

SHAPES = {
    "one token": Shape(1, 1),
    "page + 1": Shape(17, 17),
    "111 tokens, group 1": Shape(40, 111, num_heads=2),
    "group 3": Shape(33, 150, num_heads=3, num_kv_heads=1),
    "head_dim 80": Shape(20, 90, head_dim=80),
    "partial rotary": Shape(20, 90, head_dim=80, rotary_dim=32),
}


@pytest.mark.parametrize("name", ["one token", "111 tokens, group 1", "partial rotary"])
def test_reference_is_the_formula(name, device):
    case = make_case(SHAPES[name], device)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=4)
    out, lse = sparse_prefill(
        case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE, backend="reference"
    )
    true_out, true_lse = attention(case, plan, SCALE)
    assert relative_error(out, true_out) < 2e-6
    assert relative_error(lse, true_lse) < 2e-6


def test_everything_selected_is_dense_attention(device):
    """With all blocks between sinks and window chosen, packed positions are the true ones."""
    case = make_case(Shape(16, 111), device)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=6)
    start = int(plan.window_starts[0])
    everything = torch.arange(2, start // 8, dtype=torch.int32, device=device)
    plan = dataclasses.replace(
        plan, block_indices=everything.expand(1, 2, -1).contiguous(), local_tokens=111
    )
    dense = dataclasses.replace(plan, window_starts=torch.zeros_like(plan.window_starts))
    arguments = (case.rope, case.seqlen_k, SCALE)
    for backend in ("reference", "triton"):
        packed = sparse_prefill(case.q, case.kv, plan, *arguments, backend=backend)
        true = sparse_prefill(case.q, case.kv, dense, *arguments, backend=backend)
        assert relative_error(packed[0], true[0]) < 2e-6
        assert relative_error(packed[1], true[1]) < 2e-6


# fp16 differs from fp32 only in rounding: two shapes are enough.
@pytest.mark.parametrize(
    "name, dtype",
    [(name, torch.float32) for name in SHAPES]
    + [("group 3", torch.float16), ("head_dim 80", torch.float16)],
)
def test_prefill_kernel(name, dtype, device):
    case = make_case(SHAPES[name], device, dtype)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=4)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    true_out, true_lse = sparse_prefill(*arguments, backend="reference")
    out, lse = sparse_prefill(*arguments, backend="triton")
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert relative_error(out, true_out) < BUDGET[dtype]
    assert relative_error(lse, true_lse) < BUDGET[dtype]


def test_prefill_splits_a_wide_group_into_tiles(device):
    """16 heads a KV head and 16 queries are 256 rows: more than one program's."""
    case = make_case(Shape(16, 70, num_heads=16, num_kv_heads=1), device)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=4)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    true_out, _ = sparse_prefill(*arguments, backend="reference")
    out, _ = sparse_prefill(*arguments, backend="triton")
    assert relative_error(out, true_out) < BUDGET[torch.float32]


@pytest.mark.parametrize("name", SHAPES)
def test_decode_kernel(name, device):
    shape = dataclasses.replace(SHAPES[name], num_tokens=min(3, SHAPES[name].num_tokens))
    case = make_case(shape, device)
    plan = make_plan(case, block_size_q=1, window_tokens=20, num_selected=4)
    arguments = (case.q, case.kv, plan, case.rope, case.seqlen_k, SCALE)
    true_out, true_lse = attention(case, plan, SCALE)
    for backend in ("reference", "triton"):
        out, lse = sparse_decode(*arguments, backend=backend)
        assert relative_error(out, true_out) < BUDGET[torch.float32]
        assert relative_error(lse, true_lse) < BUDGET[torch.float32]


def test_decode_with_room_for_more_keys_than_there_are(device):
    """A launch sized for a long context leaves most programs without keys."""
    case = make_case(Shape(1, 50), device)
    plan = make_plan(case, block_size_q=1, window_tokens=20, num_selected=2)
    roomy = dataclasses.replace(plan, local_tokens=512)
    arguments = (case.rope, case.seqlen_k, SCALE)
    true_out, true_lse = sparse_decode(case.q, case.kv, plan, *arguments, backend="reference")
    out, lse = sparse_decode(case.q, case.kv, roomy, *arguments, backend="triton")
    assert relative_error(out, true_out) < BUDGET[torch.float32]
    assert relative_error(lse, true_lse) < BUDGET[torch.float32]


@pytest.mark.parametrize("run, block_size_q", [(sparse_prefill, 16), (sparse_decode, 1)])
def test_a_plan_longer_than_it_promised_is_nan(run, block_size_q, device):
    case = make_case(Shape(1, 111), device)
    plan = make_plan(case, block_size_q, window_tokens=70, num_selected=2)
    short = dataclasses.replace(plan, local_tokens=32)
    out, _ = run(case.q, case.kv, short, case.rope, case.seqlen_k, SCALE, backend="triton")
    assert out.isnan().all()


def test_bad_arguments_are_named(device):
    case = make_case(Shape(16, 60), device)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=4)
    rest = (case.rope, case.seqlen_k, SCALE)
    with pytest.raises(ValueError, match="k_pages: expected shape .* received"):
        sparse_prefill(case.q[..., :32].contiguous(), case.kv, plan, *rest)
    with pytest.raises(TypeError, match="k_pages: expected dtype float16"):
        sparse_prefill(case.q.half(), case.kv, plan, *rest)
    with pytest.raises(ValueError, match="not a multiple of the 2 KV heads"):
        sparse_prefill(case.q[:, :3], case.kv, plan, *rest)
    with pytest.raises(ValueError, match="rows of the RoPE tables"):
        long = dataclasses.replace(plan, local_tokens=4096)
        sparse_prefill(case.q, case.kv, long, *rest)
    with pytest.raises(ValueError, match="expected a multiple of the page size 16"):
        odd = dataclasses.replace(plan, sink_tokens=8)
        sparse_prefill(case.q, case.kv, odd, *rest)
    with pytest.raises(ValueError, match="expected 1 to decode"):
        sparse_decode(case.q, case.kv, plan, *rest)
    with pytest.raises(ValueError, match="expected auto or one of"):
        sparse_prefill(case.q, case.kv, plan, *rest, backend="cuda")


def test_unsupported_head_dim_and_bf16_are_refused(device):
    case = make_case(Shape(16, 60, head_dim=32), device)
    plan = make_plan(case, block_size_q=16, window_tokens=20, num_selected=4)
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    with pytest.raises(NotImplementedError, match="head_dim 32"):
        sparse_prefill(case.q, case.kv, *rest, backend="triton")
    if device.type == "cpu":
        kv = PagedKV(case.kv.k_pages.bfloat16(), case.kv.v_pages.bfloat16(), case.kv.page_table)
        with pytest.raises(NotImplementedError, match="bfloat16"):
            sparse_prefill(case.q.bfloat16(), kv, *rest, backend="triton")
