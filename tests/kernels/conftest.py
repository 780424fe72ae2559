"""Fixtures of the kernel tests: where they run, and memory that shows it was never written."""

from __future__ import annotations

import pytest
import torch

POISON = {torch.int32: 1 << 30, torch.int64: 1 << 60}


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU where there is one; else the CPU, with Triton's interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty and empty_like give NaN, or a number no kernel would write."""

    def poisoned(make):
        def build(*args, **kwargs):
            tensor = make(*args, **kwargs)
            if tensor.is_meta:
                return tensor
            floating = tensor.is_floating_point()
            return tensor.fill_(float("nan") if floating else POISON.get(tensor.dtype, 85))

        return build

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
