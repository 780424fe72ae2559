"""The attention of shards on a GPU: merged they are the whole, in bf16 and in fp8."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hipcli.kernels.merge_partials import merge_partials
from hipcli.kernels.shard_attention import shard_attention
from hipcli.kernels.sparse_prefill import sparse_prefill
from tests.gpu.test_fp8 import widened
from tests.gpu.test_kernels import SCALE, SHAPES, assert_attention, gpu_case
from tests.kernels.builders import make_plan, quantised
from tests.kernels.page_tables import shards

pytestmark = pytest.mark.gpu
# Owners of the pages, repeated; where two take turns a shard may have none of a query's keys.
PLACEMENTS = {"interleaved": [0, 1, 2], "lent": [0] * 9 + [1] * 9 + [2] * 30}


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("placed", PLACEMENTS)
@pytest.mark.parametrize("name", ["llama", "smollm", "partial rotary"])
@pytest.mark.parametrize("size", [1, 64])
def test_merged_shards_are_the_whole(size, name, placed, fp8):
    shape = SHAPES[name]
    shape = dataclasses.replace(shape, num_tokens=3) if size == 1 else shape
    case = gpu_case(shape)
    case = quantised(case) if fp8 else case
    plan = make_plan(
        case, size, window_tokens=300, num_selected=30, sink_tokens=64, block_size_k=16
    )
    rest = (plan, case.rope, case.seqlen_k, SCALE)
    results = [shard_attention(case.q, kv, *rest) for kv in shards(case.kv, PLACEMENTS[placed])]
    outs, lses = (torch.stack(parts) for parts in zip(*results, strict=True))
    wide = widened(case) if fp8 else case
    truth = sparse_prefill(wide.q, wide.kv, *rest, backend="reference")
    assert_attention(wide, plan, merge_partials(outs.contiguous(), lses.contiguous()), truth)
