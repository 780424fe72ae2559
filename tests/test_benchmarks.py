"""What the benchmarks compute from their times."""

import pytest

pytest.importorskip("triton")

from hipcli.engine.benchmarks.kernel_cases import speedups

RESULTS = {
    "decode, SDPA flash": 1.2,
    "decode, SDPA cuDNN": 0.9,
    "decode, full selection": 0.06,
    "decode part: score_pages": 0.01,
    "prefill chunk 8,192, SDPA cuDNN": 30.0,
    "prefill chunk 8,192, all": 2.5,
}


def test_a_step_is_compared_with_every_baseline_of_its_kind() -> None:
    assert speedups(RESULTS, "decode, full selection") == {"flash": 20.0, "cuDNN": 15.0}
    assert speedups(RESULTS, "prefill chunk 8,192, all") == {"cuDNN": 12.0}


@pytest.mark.parametrize("name", ["decode, SDPA flash", "decode part: score_pages"])
def test_baselines_and_parts_are_not_compared(name: str) -> None:
    assert speedups(RESULTS, name) == {}
