"""GPU tests: collected only where there is a GPU, and never in Triton's interpreter.

python -m pytest tests/gpu -q
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import hipcli

# A checkout that was not installed keeps the lower houses at its top.
if find_spec("hipcli.kernels") is None:
    hipcli.__path__.append(str(Path(__file__).parents[2]))

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark, for runs of this folder alone."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture(autouse=True)
def compiled_kernels() -> None:
    """The interpreter would pass these tests without telling anything about the GPU."""
    from hipcli.kernels.triton_common import interpreted

    assert not interpreted(), "TRITON_INTERPRET is set: GPU tests need compiled kernels"
