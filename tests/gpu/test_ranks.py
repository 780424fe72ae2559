"""Ranks on a GPU: two and three share one, and answer as one rank does.

NCCL refuses ranks that share a GPU, so their tensors go by way of the host; all else is the path
that ranks with a GPU each take. NCCL itself runs here with one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hipcli.engine.config import EngineConfig
from hipcli.engine.distributed.attending import ShardStep
from hipcli.engine.distributed.choosing import Chooser
from hipcli.engine.distributed.driver import DrivenRunner, Team
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.group import ProcessGroup
from hipcli.engine.distributed.passes import ShardAnswer
from hipcli.engine.distributed.placement import Placement, interleaved
from hipcli.engine.distributed.shard import Shard
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.passes.given import GivenPages
from hipcli.engine.store.layout import KVLayout
from tests.engine.distributed.processes import config, request
from tests.engine.distributed.test_equality import read
from tests.engine.models import toy_models
from tests.engine.tiny import random_ids, tiny_hip
from tests.gpu.wide import wide_model

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


@contextmanager
def one_nccl_rank(folder: Path) -> Iterator[ProcessGroup]:
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "ranks"), 1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    try:
        yield ProcessGroup(dist.group.WORLD, device, lambda: None, lambda error: error)
    finally:
        dist.destroy_process_group()


def test_nccl_gathers_and_a_graph_holds_it(tmp_path):
    with one_nccl_rank(tmp_path) as group:
        _gathers(group)


class Nobody:
    """A channel to no other rank."""

    def send(self, record) -> None:
        pass


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
def test_a_step_of_an_answer_asks_the_host_nothing_and_a_graph_holds_it(tmp_path, kv_dtype):
    """Selecting anew, keeping a selection, and with pages that are given."""
    runner, method = Runner(wide_model(torch.float16).to("cuda"), kv_dtype), tiny_hip()
    context = 64 * 12 + 7
    with one_nccl_rank(tmp_path) as group:
        driven = DrivenRunner(runner, Team(Shard(runner, method, group), Nobody()))
        store = driven.new_shared_store(context + 64)
        read(driven, method, store, random_ids(context))
        pages = torch.tensor([3, 5, 4], device="cuda")
        kept = ShardAnswer(method, Chooser(method))
        given = ShardAnswer(method, Chooser(method), GivenPages(pages, context // 64))
        makers = [lambda: ShardAnswer(method, Chooser(method)), lambda: kept, lambda: given]
        ids = torch.tensor([7], device="cuda")
        for make in makers:

            def step(make=make):
                scale = runner.layout.head_dim**-0.5
                made = (group, store, runner.tables, make(), context, 1, scale, False)
                return runner.logits(ids, ShardStep(*made))

            expected = step()
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                again = step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                held = step()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.isfinite(expected).all()
            torch.testing.assert_close(again, expected)
            torch.testing.assert_close(held, expected)


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
