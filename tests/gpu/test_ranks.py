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
from hipcli.engine.distributed.driver import DrivenRunner, Team, driven_passes
from hipcli.engine.distributed.engine import DistributedEngine
from hipcli.engine.distributed.group import ProcessGroup
from hipcli.engine.distributed.placement import Placement, interleaved
from hipcli.engine.distributed.shard import Shard
from hipcli.engine.distributed.starting import Crew
from hipcli.engine.distributed.steps import HeldSteps
from hipcli.engine.distributed.store import ShardStore
from hipcli.engine.engine import Engine
from hipcli.engine.errors import UsageError
from hipcli.engine.forward.runner import Runner
from hipcli.engine.forward.step import StepInput
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


class Counting(ProcessGroup):
    """Counts what it gathers as if there were another rank."""

    def gather(self, part, purpose):
        self.sent_bytes[purpose] += part.nbytes
        return super().gather(part, purpose)


@contextmanager
def one_nccl_rank(folder: Path) -> Iterator[ProcessGroup]:
    device = torch.device("cuda:0")
    torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "ranks"), 1)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    try:
        yield Counting(dist.group.WORLD, device, lambda: None, lambda error: error)
    finally:
        dist.destroy_process_group()


def test_nccl_gathers_and_a_graph_holds_it(tmp_path):
    with one_nccl_rank(tmp_path) as group:
        _gathers(group)


class Nobody:
    """A channel to no other rank."""

    def send(self, record) -> None:
        pass


def stepped(
    shard, runner, method, pages, *, holds: bool
) -> tuple[torch.Tensor, dict[str, int], HeldSteps | None]:
    """Logits of 90 tokens one by one behind a context, over two borders of pages, and how much was
    sent."""
    shard.holds_steps = holds
    driven, context = DrivenRunner(runner, Team(shard, Nobody())), 64 * 12 + 7
    store = driven.new_shared_store(context + 200)
    read(driven, method, store, random_ids(context))
    asked = driven_passes(driven.team).answer(method, pages, context // 64)
    told = []
    shard.group.sent_bytes.clear()
    for token in random_ids(90, seed=3):
        step = StepInput(store, runner.tables, asked, store.length)
        told.append(driven.logits(token.view(1), step))
    held, sent = shard.held.get(asked.handle), dict(shard.group.sent_bytes)
    if held is not None:
        # Neither run one launch at a time nor replayed does it wait for the device.
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.inference_mode():
                held._run()
            held.run(7, store.length)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return torch.cat(told), sent, held


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("given", [None, [3, 5, 4]])
def test_graphs_hold_the_steps_of_an_answer(tmp_path, kv_dtype, given):
    """Selecting anew, keeping a selection, and with pages that are given."""
    runner, method = Runner(wide_model(torch.float16).to("cuda"), kv_dtype), tiny_hip()
    pages = None if given is None else torch.tensor(given)
    with one_nccl_rank(tmp_path) as group:
        shard = Shard(runner, method, group)
        assert shard.holds_steps
        expected, sent, none = stepped(shard, runner, method, pages, holds=False)
        logits, sent_too, held = stepped(shard, runner, method, pages, holds=True)
        assert none is None and held._graphs
        assert sent["partials"] and sent_too == sent
        torch.testing.assert_close(logits, expected, atol=2e-2, rtol=1e-2)


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
