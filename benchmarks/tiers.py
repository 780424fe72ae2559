"""Times reading and decoding with most keys and values beside the GPU, in pinned memory.

    python3 benchmarks/tiers.py [--only gate device tiers long] [OPTIONS]

On one GPU, from a checkout that need not be installed; see `engine/benchmarks/tiers.py`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.kernels") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.engine.benchmarks.tiers import main  # noqa: E402  (needs the path above)

if __name__ == "__main__":
    sys.exit(main())
