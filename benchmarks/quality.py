"""Passkeys at every depth of haystacks of any length: answers and evidence, a table, one JSON line.

    python benchmarks/quality.py --models-dir DIR [--device auto] [--cells noise:32000 code:32000]
        [--depths 5] [--answer auto]

Haystacks: noise (the same few sentences), prose (a generated book), code (Python sources of the
installed transformers). `right` counts answers that hold the passkey, `first` and `evidence` count
passkeys in the best passage and among the eight best.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.engine") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.engine.config import EngineConfig  # noqa: E402
from hipcli.engine.engine import Engine  # noqa: E402
from tests.quality.passkey import ask_passkey  # noqa: E402

CELLS = ("noise:8000", "noise:32000", "code:32000", "prose:32000")


def run_cell(engine: Engine, cell: str, depths: int, answer: str, folder: Path) -> dict:
    """All depths of one cell, say code:32000."""
    kind, tokens = cell.split(":")
    began = time.perf_counter()
    outcomes = [
        ask_passkey(engine, kind, int(tokens), (i + 0.5) / depths, i, folder, answer)
        for i in range(depths)
    ]
    for outcome in outcomes:
        if not outcome.right:
            print(f"  {cell}: evidence rank {outcome.rank}, said {outcome.answer!r}", flush=True)
    return {
        "cell": cell,
        "asked": depths,
        "right": sum(outcome.right for outcome in outcomes),
        "first": sum(outcome.rank == 0 for outcome in outcomes),
        "evidence": sum(outcome.rank >= 0 for outcome in outcomes),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--depths", type=int, default=5)
    parser.add_argument("--answer", default="auto")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no cell after this")
    args = parser.parse_args()
    config = EngineConfig(models_dir=args.models_dir, model=args.model, device=args.device)
    engine = Engine.open(config)
    rows = []
    began = time.perf_counter()
    print(f"{'cell':<16}{'asked':>6}{'right':>6}{'first':>6}{'evidence':>9}{'seconds':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for cell in args.cells:
            if time.perf_counter() - began > args.limit_s:
                print(f"{cell:<16} not started: out of time")
                continue
            row = run_cell(engine, cell, args.depths, args.answer, Path(folder))
            rows.append(row)
            print(
                f"{cell:<16}{row['asked']:>6}{row['right']:>6}{row['first']:>6}"
                f"{row['evidence']:>9}{row['seconds']:>9}",
                flush=True,
            )
    print(json.dumps({"answer": args.answer, **engine.description, "rows": rows}))


if __name__ == "__main__":
    main()
