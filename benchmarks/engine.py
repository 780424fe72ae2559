"""Times the whole engine, after checking that its answers are right.

    python3 benchmarks/engine.py [OPTIONS]

The same as `hip bench engine`, from a checkout that need not be installed.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import hipcli  # noqa: E402  (the checkout is put on the path first)

if find_spec("hipcli.kernels") is None:
    # A checkout that was not installed keeps the lower houses at its top.
    hipcli.__path__.append(str(ROOT))

from hipcli.engine.threads import prepare_threads  # noqa: E402  (needs the path above)

prepare_threads(os.environ)

from hipcli.engine.benchmarks.engine import main  # noqa: E402  (needs the path above)

if __name__ == "__main__":
    sys.exit(main([sys.executable, str(Path(__file__).resolve())]))
