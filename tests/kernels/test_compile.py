"""Every kernel compiles for three GPU generations on a machine without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What each kernel must be built from; kernels not named here only have to compile.
MATRIX = {
    80: "mma.sync",
    90: "wgmma.mma_async",
    100: "tcgen05.mma",
}
MATRIX_CASES = (
    "score_pages_prefill",
    "score_blocks_prefill",
    "sparse_prefill",
    "sparse_decode",
    "shard_attention",
    "vote",
)
MATRIX_KERNELS = ("_attend", "_attend_shard", "_score_pages", "_score_blocks", "_vote")
# A program's shared memory on H100, H200 and B200.
SHARED_BYTES = 232448


def compile_offline(*arguments: str) -> list[dict]:
    """What tests.kernels.offline prints, from a process without the interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.offline", *arguments],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled() -> list[dict]:
    """Every kernel for Hopper, those with matrix products for the generations around it."""
    return compile_offline("90") + compile_offline("80,100", *MATRIX_CASES)


def test_no_kernel_is_forgotten(compiled):
    assert {kernel["kernel"] for kernel in compiled} >= {
        "_rope",
        "_summarise",
        "_score_pages",
        "_select",
        "_score_blocks",
        "_pack_plan",
        "_attend",
        "_attend_shard",
        "_pack_shard",
        "_decode",
        "_merge",
        "_quantise",
        "_vote",
        "_fetch",
        "_plan",
        "_plan_values",
    }


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_kernels_compile_to_the_instructions_meant(compiled, capability):
    kernels = [kernel for kernel in compiled if kernel["capability"] == capability]
    assert kernels
    for kernel in kernels:
        if kernel["kernel"] in MATRIX_KERNELS:
            # 16 rows of one token: the small matrix instructions on every generation.
            few = kernel["case"] == "shard_attention_decode"
            assert kernel["mma.sync" if few else MATRIX[capability]], kernel
            assert kernel["async_copies"], kernel
        if kernel["case"] == "fp8 vote":
            # Keys go to the matrix units as they are stored.
            assert kernel["fp8_products"], kernel
        if kernel["kernel"] == "_fetch":
            # 16 bytes at once: an address says nothing about its alignment by itself.
            assert kernel["ld.global.v4"] and kernel["st.global.v4"], kernel
        if kernel["kernel"] == "_decode":
            # 16 rows: the small matrix instructions on every generation.
            assert kernel["mma.sync"], kernel
        # The tiles chosen without a device are Hopper's.
        assert kernel["shared_bytes"] <= SHARED_BYTES, kernel


def test_cpu_tensors_are_refused_without_the_interpreter():
    code = (
        "import torch\n"
        "from hipcli.kernels.merge_partials import merge_partials\n"
        "merge_partials(torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1), backend='triton')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TypeError: the triton backend needs CUDA tensors" in done.stderr
