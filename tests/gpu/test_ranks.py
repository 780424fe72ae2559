"""Ranks on a GPU: two and three share one, and answer as one rank does.

NCCL refuses ranks that share a GPU, so their tensors go by way of the host; all else is the path
that ranks with a GPU each take. NCCL itself runs here with one rank.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.group import ProcessGroup
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
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
