"""The simulator: the managers of a real pool over generated traces."""

from dataclasses import replace

import pytest

from hipcli.engine.pool.simulation.cluster import Cluster, ClusterConfig
from hipcli.engine.pool.simulation.hardware import LLAMA2_7B, Machine
from hipcli.engine.pool.simulation.traces import TRACES, TraceConfig, generate

# Four GPUs in two nodes.
SMALL = ClusterConfig(Machine(gpus=4, node_gpus=2), LLAMA2_7B)
TRACE = TraceConfig("small", 300_000, 0.1, 0.02)


@pytest.mark.parametrize("trace", TRACES)
def test_a_trace_keeps_its_limits(trace: TraceConfig) -> None:
    jobs = generate(trace, 5000, seed=1)
    assert jobs == generate(trace, 5000, seed=1)
    lengths = [job.prompt_tokens + job.answer_tokens for job in jobs]
    assert min(lengths) >= 1 and trace.longest_tokens * 0.8 < max(lengths) <= trace.longest_tokens
    long = sum(length > 60_000 for length in lengths) / len(lengths)
    assert long == pytest.approx(trace.long_share, abs=0.005)


def test_a_trace_of_shares_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="shares"):
        TraceConfig("wrong", 1000, 0.9, 0.2)


def test_the_tables_agree_with_what_is_published() -> None:
    machine = Machine()
    one, eight = (machine.model(LLAMA2_7B, gpus).work_s(64) for gpus in (1, 8))
    # Spread over eight GPUs, work outside attention runs at about a third of its efficiency.
    assert 0.25 < one / 8 / eight < 0.45
    # 1,000K tokens need more than 500 GB.
    assert LLAMA2_7B.kv_bytes * 1e6 > 500e9


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_serves_what_no_instance_can_hold(seed: int) -> None:
    jobs = generate(TRACE, 300, seed)
    alone = Cluster(replace(SMALL, pooled=False)).serve(jobs)
    pool = Cluster(SMALL).serve(jobs)
    too_long = [job for job in jobs if job.prompt_tokens > 111_618]
    assert too_long
    assert (alone.served, alone.refused) == (len(jobs) - len(too_long), len(too_long))
    assert (pool.served, pool.refused) == (len(jobs), 0)
    assert pool.room_blocks > 0 and alone.moved_blocks == alone.room_blocks == 0
    assert pool == Cluster(SMALL).serve(jobs)


def test_everything_is_free_in_the_end() -> None:
    cluster = Cluster(SMALL)
    jobs = generate(TRACE, 60, seed=5)
    cluster.serve(jobs)
    # What still runs when nobody waits any more runs to its end.
    for _ in range(4000):
        if not any(one.running for one in cluster._instances.values()):
            break
        cluster._talk(schedule=True)
        cluster._generate()
        cluster._now_s += 0.25
    for one in cluster._instances.values():
        assert one.manager.free_blocks == one.manager.capacity_blocks


def test_reading_prompts_takes_time_too() -> None:
    jobs = generate(TRACE, 100, seed=7)
    assert (
        Cluster(replace(SMALL, prefill=True)).serve(jobs).tokens_per_s
        < Cluster(SMALL).serve(jobs).tokens_per_s
    )
