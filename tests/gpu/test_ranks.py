"""Ranks on a GPU: two and three share one, and answer as one rank does.

NCCL refuses ranks that share a GPU, so their tensors go by way of the host; all else is the path
that ranks with a GPU each take. NCCL itself runs here with one rank.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.group import ProcessGroup
from hipcli.engine.distributed.placement import Placement, interleaved
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.store.layout import KVLayout
from tests.engine.distributed.processes import config, request
from tests.engine.models import toy_models

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory) -> EngineConfig:
    model = toy_models.llama(tmp_path_factory.mktemp("model") / "toy", head_dim=64)
    return config(model, device="cuda")


def alone(made: EngineConfig, asked):
    *_, result = Engine.open(made).ask(asked)
    return result


def together(made: EngineConfig, size: int, asked):
    opened = DistributedEngine.over(made, Crew(size, one_gpu=True))
    try:
        *_, result = opened.ask(asked)
    except BaseException as error:
        opened.close(error)
        raise
    opened.close()
    return result


def told(result) -> tuple:
    return result.answer, result.mode, [e.start_token for e in result.evidence]


@pytest.mark.parametrize(("size", "mode"), [(2, "attend"), (2, "share"), (3, "attend")])
def test_ranks_of_one_gpu_answer_as_one(on_gpu, size, mode):
    asked = request(None, answer=mode)
    assert told(together(on_gpu, size, asked)) == told(alone(on_gpu, asked))


def test_a_session_of_two_ranks_serves_one(on_gpu, tmp_path):
    asked = request(tmp_path / "cache")
    written = together(on_gpu, 2, asked)
    read = alone(on_gpu, asked)
    assert read.session.id == written.session.id and read.session.reused
    assert told(read) == told(written) == told(alone(on_gpu, request(None)))


def test_ranks_answer_and_save_in_fp8(on_gpu, tmp_path):
    made = replace(on_gpu, kv_dtype="fp8_e4m3")
    asked = request(tmp_path / "cache")
    written = together(made, 2, asked)
    read = alone(made, asked)
    assert read.session.id == written.session.id and read.session.reused
    assert told(read) == told(written) == told(alone(made, request(None)))
    assert told(together(made, 3, asked)) == told(written)


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
def test_a_rank_takes_memory_for_its_own_pages(kv_dtype):
    layout = KVLayout(4, 8, 128, torch.bfloat16, kv_dtype)
    device, tokens = torch.device("cuda:0"), 64 * 1024
    taken = []
    for size in (1, 2, 4):
        before = torch.cuda.memory_allocated(device)
        placement = Placement.of(interleaved(1024, size), 0, size)
        store = ShardStore(layout, tokens, "triton", device, placement)
        k = torch.randn(1000, 8, 128, device=device, dtype=torch.bfloat16)
        store.append(0, 0, k, k)
        del k
        taken.append(torch.cuda.memory_allocated(device) - before)
        del store
    assert taken[0] == pytest.approx(layout.num_bytes(tokens), rel=0.01)
    assert taken[1:] == pytest.approx([taken[0] / 2, taken[0] / 4], rel=0.01)


def test_more_gpus_than_there_are_is_refused(on_gpu):
    there = torch.cuda.device_count()
    with pytest.raises(UsageError, match=f"{there} are here"):
        DistributedEngine.over(on_gpu, Crew(there + 1))


def test_nccl_gathers_and_a_graph_holds_it(tmp_path):
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    store = dist.FileStore(str(tmp_path / "ranks"), 1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    try:
        _gathers(ProcessGroup(dist.group.WORLD, device, lambda: None, lambda error: error))
    finally:
        dist.destroy_process_group()


def _gathers(group: ProcessGroup) -> None:
    part = torch.arange(6, device="cuda", dtype=torch.float32).view(2, 3)
    assert torch.equal(group.gather(part, "test")[0], part)
    raw = part.view(torch.uint8).flatten()
    assert torch.equal(group.exchange([raw], [len(raw)], "test")[0], raw)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        gathered = group.gather(part * 2, "test")
    part.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(gathered[0], torch.full_like(part, 10))
