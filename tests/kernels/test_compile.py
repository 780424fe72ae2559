"""Every kernel compiles for three GPU generations on a machine without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.kernels.score_pages import score_pages
from hipcli.kernels.triton_common import interpreted

from .builders import Shape, make_case
from .test_scores import build_index

ROOT = Path(__file__).parents[2]
# What each kernel must be built from; kernels not named here only have to compile.
MATRIX = {
    80: "mma.sync",
    90: "wgmma.mma_async",
    100: "tcgen05.mma",
}
MATRIX_KERNELS = ("_attend", "_score_pages", "_score_blocks", "_vote")
# A program's shared memory on A100, H100/H200 and B200.
SHARED_BYTES = {80: 166912, 90: 232448, 100: 232448}


def compile_all(capability: int, *names: str) -> list[dict]:
    """Run tests.kernels.offline in a process without the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.offline", str(capability), *names],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()[1:]]


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile(capability):
    kernels = compile_all(capability)
    assert {kernel["kernel"] for kernel in kernels} >= {
        "_rope", "_summarise", "_score_pages", "_select", "_score_blocks", "_pack_plan", "_attend",
        "_decode", "_merge", "_vote",
    }
    for kernel in kernels:
        if kernel["kernel"] in MATRIX_KERNELS:
            assert kernel[MATRIX[capability]], kernel
            assert kernel["cp.async.cg"], kernel
        if kernel["kernel"] == "_decode":
            # 16 rows: the small matrix instructions on every generation.
            assert kernel["mma.sync"] or kernel["tcgen05.mma"], kernel


def test_programs_fit_hopper(): 
    for kernel in compile_all(90):
        assert kernel["shared_bytes"] <= SHARED_BYTES[90], kernel


def test_cpu_tensors_are_refused_without_the_interpreter():
    code = (
        "import torch\n"
        "from hipcli.kernels.merge_partials import merge_partials\n"
        "merge_partials(torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1), backend='triton')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True, text=True, check=False,
    )
    assert "TypeError: the triton backend needs CUDA tensors" in done.stderr
