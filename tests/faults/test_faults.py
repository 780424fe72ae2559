"""Fault runs in real processes; see `runs.py`, which also runs a single one again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_faults(count: int, first: int) -> None:
    words = [sys.executable, "-m", "tests.faults.runs", f"--count={count}", f"--first={first}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    outcome = subprocess.run(
        words, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert f"{count} runs, 0 failed" in outcome.stdout


def test_a_hundred_faults() -> None:
    run_faults(100, first=0)


@pytest.mark.slow
def test_a_thousand_faults() -> None:
    run_faults(1_000, first=1_000)
