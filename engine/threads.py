"""How the threads of matrix products wait for work. To be called before torch is imported."""

import os
from collections.abc import MutableMapping

# About 0.1 ms: longer than the gap between two operations of a layer.
SPIN_COUNT = "5000"


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let waiting threads spin shortly, then sleep, unless the user settled it.

    Threads that sleep at once cost a fifth of the speed of reading, threads that spin for long
    steal the processor from any other busy program (docs/log.md). OpenMP reads the setting when
    torch is first imported.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
