"""Times the whole engine, after checking that its answers are right.

    python3 benchmarks/engine.py --device cpu [--model NAME] [--lengths 2048 8192 32768]
    python3 benchmarks/engine.py --device cuda [--only gate short 128k 1m profile]

CPU: a real model; reading speed at several document lengths, where the memory goes, and the time
from a saved session to the first token. GPU: the Llama-3.1-8B shape with random weights made
there, in bf16; reading and decoding at 131,072 and 1,048,576 tokens beside dense attention by SDPA
in the same run. Prints the checks, a table, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from hipcli.engine.benchmarks.checkout import commit
from hipcli.engine.config import KV_DTYPES


def environment(device: str) -> dict[str, object]:
    """What the numbers depend on."""
    import transformers

    facts = {
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit(),
    }
    if device == "cuda":
        import triton

        facts["device"] = torch.cuda.get_device_properties(0).name
        facts["triton"] = triton.__version__
    else:
        facts["threads"] = torch.get_num_threads()
    return facts


class Report:
    """Results and errors of a run; every section gets its turn."""

    def __init__(self, only: list[str] | None, limit_s: float) -> None:
        self.results: dict[str, object] = {}
        self.errors: dict[str, str] = {}
        self._only = only
        self._began = time.monotonic()
        self._limit_s = limit_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def section(self, name: str, run: Callable[[], None], needs_s: float = 0.0) -> None:
        """Run a section unless it was not asked for or would not end in time."""
        if self._only and name not in self._only:
            return
        if self.elapsed_s + needs_s > self._limit_s:
            self.errors[name] = "not started: out of time"
            print(f"SKIPPED {name}: out of time", flush=True)
            return
        print(f"-- {name} ({self.elapsed_s:.0f} s)", flush=True)
        try:
            run()
        except Exception as error:  # every section must get its turn
            self.errors[name] = f"{type(error).__name__}: {error}"[:400]
            print(f"FAILED {name}: {self.errors[name]}", flush=True)
            traceback.print_exc(limit=-6)

    def show(self, name: str, value: float, unit: str, note: str = "") -> None:
        """Print and keep one number."""
        self.results[name] = round(value, 4)
        print(f"   {name:58s} {value:12,.2f} {unit:6s} {note}", flush=True)


def parse(words: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser("engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="*", default=None, help="sections to run")
    parser.add_argument("--limit-s", type=float, default=460.0, help="start nothing after this")
    parser.add_argument("--model", default="smollm2", help="CPU: name or folder")
    parser.add_argument("--models-dir", type=Path, default=Path.home() / ".cache/hip/models")
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 32768, 131072])
    parser.add_argument("--contexts", type=int, nargs="*", default=[131072, 1048576])
    parser.add_argument("--layers", type=int, default=32, help="GPU: of the model")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="auto", help="GPU: of the store")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(program: list[str], words: list[str] | None = None) -> int:
    """Check, time, print.

    Args:
        program: what starts this benchmark; each length on a CPU is a process of its own.
        words: the command line; None for the process's own.
    """
    options = parse(words)
    options.program = program
    if options.child:
        from hipcli.engine.benchmarks.engine_cpu import child

        return child(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to time", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    report = Report(options.only, options.limit_s)
    if options.device == "cuda":
        from hipcli.engine.benchmarks.engine_gpu import run_all
    else:
        from hipcli.engine.benchmarks.engine_cpu import run_all
    run_all(options, report)
    line = {
        **environment(options.device),
        "kv_dtype": options.kv_dtype,
        "results": report.results,
        "errors": report.errors,
        "seconds": round(report.elapsed_s, 1),
    }
    print(json.dumps(line))
    return 1 if report.errors else 0
