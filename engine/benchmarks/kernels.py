"""Times the kernels on one GPU beside dense SDPA, after checking that they are right.

    python3 benchmarks/kernels.py [--only NAME ...] [--sweep] [--contexts 131072 1048576]

Shape: one layer of Llama-3.1-8B (32 query heads, 8 KV heads, head_dim 128, bf16, batch 1), 256
sinks, a window of 1,024, 2,048 selected tokens in blocks of 16, 64-token pages. Decode runs in
CUDA graphs that walk over several layers' buffers, so that the L2 cache does not flatter it. The
entries of "fp8" are the same with keys and values in float8_e4m3fn; those of "tiers" move pages
between pinned memory and the device, and read them through a page table of each KV head.
Prints the checks, a table, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback

import torch

from hipcli.engine.benchmarks.checkout import commit
from hipcli.engine.benchmarks.kernel_cases import Bench, sections, speedups
from hipcli.engine.benchmarks.kernel_checks import check_all
from hipcli.engine.benchmarks.kernel_fp8 import fp8_sections
from hipcli.engine.benchmarks.kernel_sweeps import sweeps
from hipcli.engine.benchmarks.kernel_tiers import check_fetch, tier_sections


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": commit(),
        "dtype": "bfloat16",
        "shape": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "page_size": 64},
        "plan": {"sink_tokens": 256, "window_tokens": 1024, "selected_tokens": 2048},
    }


def run_guarded(name: str, run, errors: dict[str, str]) -> None:
    """Run one entry; an error is printed and kept, and the others still run."""
    try:
        run()
    except Exception as error:  # every entry must get its turn
        errors[name] = f"{type(error).__name__}: {error}"[:400]
        print(f"FAILED {name}: {errors[name]}", flush=True)
        traceback.print_exc(limit=-3)
        torch.cuda.empty_cache()


def parse(words: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser("kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None, help="sections to run")
    parser.add_argument("--sweep", action="store_true", help="time tile sizes too")
    parser.add_argument("--contexts", type=int, nargs="*", default=[131072, 1048576])
    parser.add_argument("--limit-s", type=float, default=450.0, help="start nothing after this")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Check, time, print.

    Args:
        words: the command line; None for the process's own.
    """
    options = parse(words)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    began = time.monotonic()
    errors: dict[str, str] = {}
    checks = check_all(lambda name, run: run_guarded(name, run, errors))
    run_guarded("check fetch_pages", check_fetch, errors)
    results: dict[str, object] = {}
    ratios: dict[str, object] = {}
    for context in options.contexts:
        bench = Bench(context)
        entries = [*sections(bench), *fp8_sections(bench), *tier_sections(bench)]
        entries += sweeps(bench) if options.sweep else []
        for name, run in entries:
            if options.only and not any(word in name for word in options.only):
                continue
            if time.monotonic() - began > options.limit_s:
                errors[f"{name} {context}"] = "not started: out of time"
                continue
            run_guarded(f"{name} {context}", run, errors)
        results[str(context)] = bench.results
        ratios[str(context)] = {
            name: found for name in bench.results if (found := speedups(bench.results, name))
        }
        del bench, entries
        torch.cuda.empty_cache()
    line = {**environment(), "checks": checks, "results": results, "times_faster": ratios}
    line["errors"] = errors
    line["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(line))
    return 1 if errors else 0
