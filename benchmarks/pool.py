"""A pooled KV cache against instances on their own: tokens a second, simulated on 32 A100.

    python benchmarks/pool.py [--requests 2000] [--model 7b] [--seed 0] [--sensitivity]

Nothing here is measured on a GPU: instances are tables (`engine/pool/simulation/hardware.py`), the
managers and the scheduler are those of a real pool. What is assumed is printed above the table.
Baselines, each with the same queue, first come first served:

* multi: as many instances of the same size as the pool has, which lend nothing. Requests that are
  longer than an instance are refused; the gain is over what is left of the trace.
* sized: fewer and larger instances in tensor parallel, the smallest that hold the longest request.
* single: one instance of all GPUs, in tensor parallel.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.engine.pool.simulation import hardware, traces  # noqa: E402
from hipcli.engine.pool.simulation.cluster import Cluster, ClusterConfig, Outcome  # noqa: E402

SHAPES = {"7b": hardware.LLAMA2_7B, "13b": hardware.LLAMA2_13B, "70b": hardware.LLAMA2_70B}
# The smallest instances that hold the weights with room to spare.
SMALLEST_GPUS = {"7b": 1, "13b": 1, "70b": 4}


def sized_gpus(machine: hardware.Machine, shape: hardware.ModelShape, tokens: int) -> int | None:
    """GPUs of the smallest instance, a power of two, that holds a request; None if none does."""
    gpus = 1
    while gpus <= machine.gpus:
        if machine.room_tokens(shape, gpus) >= tokens + 256:
            return gpus
        gpus *= 2
    return None


def compare(
    base: ClusterConfig, trace: traces.TraceConfig, count: int, seed: int
) -> dict[str, object]:
    """One row: the pool, and the three baselines on the same requests."""
    jobs = traces.generate(trace, count, seed)
    pool = Cluster(base).serve(jobs)
    alone = replace(base, pooled=False)
    multi = Cluster(alone).serve(jobs)
    kept = [
        job for job in jobs if job.prompt_tokens + job.answer_tokens <= Cluster(alone).room_tokens
    ]
    pool_kept = pool if len(kept) == len(jobs) else Cluster(base).serve(kept)
    longest = max(job.prompt_tokens + job.answer_tokens for job in jobs)
    gpus = sized_gpus(base.machine, base.shape, longest)
    sized = Cluster(replace(alone, instance_gpus=gpus)).serve(jobs) if gpus else None
    single = Cluster(replace(alone, instance_gpus=base.machine.gpus)).serve(jobs)
    return {
        "trace": trace.name,
        "longest_tokens": longest,
        "pool": row(pool),
        "multi": row(multi) | {"gain": gain(pool_kept, multi)},
        "sized": (row(sized) | {"gpus": gpus, "gain": gain(pool, sized)}) if sized else None,
        "single": row(single) | {"gain": gain(pool, single)},
    }


def row(outcome: Outcome) -> dict[str, object]:
    return {
        "tokens_per_s": round(outcome.tokens_per_s, 1),
        "refused": outcome.refused,
        "moved_blocks": outcome.moved_blocks,
        "room_blocks": outcome.room_blocks,
    }


def gain(pool: Outcome, other: Outcome) -> float:
    return round(pool.tokens_per_s / other.tokens_per_s, 2) if other.tokens_per_s else 0.0


def shown(found: dict[str, object]) -> str:
    """A row for people."""
    pool, multi, sized, single = (found[name] for name in ("pool", "multi", "sized", "single"))
    cells = [f"{found['trace']:11}", f"{pool['tokens_per_s']:9,.0f}", f"{pool['refused']:5}"]
    cells += [f"{multi['gain']:5.2f}x {multi['refused']:4} refused"]
    cells += [f"{sized['gain']:5.2f}x TP{sized['gpus']:<2}" if sized else "no such    "]
    cells += [f"{single['gain']:6.2f}x"]
    return "  ".join(cells)


def told(base: ClusterConfig) -> str:
    """What is assumed, in lines."""
    machine, shape = base.machine, base.shape
    efficiency = [
        base.machine.model(shape, 1).work_s(64) / gpus / machine.model(shape, gpus).work_s(64)
        for gpus in (8, 32)
    ]
    return "\n".join(
        [
            f"{shape.name}, {machine.gpus} GPUs in nodes of {machine.node_gpus}; instances of "
            f"{base.instance_gpus}, {machine.room_tokens(shape, base.instance_gpus):,} tokens each",
            f"batch at most {base.most_batch}; prompts "
            + ("are read, by arithmetic alone" if base.prefill else "are there, not timed"),
            f"work outside attention, batch 64: each of 8 GPUs at {efficiency[0]:.2f} of one "
            f"alone, each of {machine.gpus} at {efficiency[1]:.3f}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--model", choices=SHAPES, default="7b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--traces", type=int, nargs="*", default=range(len(traces.TRACES)))
    parser.add_argument("--sensitivity", action="store_true", help="vary what is assumed")
    given = parser.parse_args()
    machine = hardware.Machine()
    base = ClusterConfig(machine, SHAPES[given.model], SMALLEST_GPUS[given.model])
    cases = {"as stated": base}
    if given.sensitivity:
        cases |= {
            "prompts are read too": replace(base, prefill=True),
            "requests are handed out in turns": replace(base, shared_queue=False),
            "batches up to 2,048": replace(base, most_batch=2048),
            "no latency of messages": replace(base, machine=replace(machine, near_s=0.0)),
            "10 GB/s between nodes": replace(
                base, machine=replace(machine, far_bytes_s=10e9, far_s=20e-6)
            ),
            "attention at half the bandwidth": replace(
                base, machine=replace(machine, hbm_share=0.4)
            ),
        }
    for name, config in cases.items():
        print(f"\n{name}\n{told(config)}")
        print("trace           pool/s  ref.  over multi          over sized   over single")
        for number in given.traces:
            found = compare(config, traces.TRACES[number], given.requests, given.seed)
            print(shown(found), flush=True)
            print(json.dumps({"case": name, "model": config.shape.name, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
