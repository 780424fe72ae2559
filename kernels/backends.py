"""Which implementation of an operator runs where.

Every operator folder holds `reference.py` and `triton_impl.py`, and `cpu_impl.py` where the
CPU needs a faster path. The engine resolves "auto" once with `resolve` and passes the
answer on; nothing falls back silently afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table.

    Args:
        summary: one line for listings.
        modules: file names tried in this order inside an operator's folder.
    """

    summary: str
    modules: tuple[str, ...]


BACKENDS = {
    "reference": Backend("plain PyTorch, any device, written for the reader", ("reference",)),
    "cpu": Backend(
        "PyTorch arranged for CPUs; the reference where it needs no faster path",
        ("cpu_impl", "reference"),
    ),
    "triton": Backend("Triton kernels for NVIDIA GPUs", ("triton_impl",)),
}


def resolve(backend: str, device: torch.device) -> str:
    """Name the backend for a device.

    Args:
        backend: a name of BACKENDS, or "auto".
        device: where the tensors are.

    Returns:
        A name of BACKENDS: "auto" is "triton" on CUDA devices and "cpu" elsewhere.

    Raises:
        ValueError: an unknown name.
        TypeError: "cpu" for tensors that are elsewhere.
    """
    if backend == "auto":
        return "triton" if device.type == "cuda" else "cpu"
    if backend not in BACKENDS:
        raise ValueError(
            f"backend: expected auto or one of {', '.join(BACKENDS)}, received {backend!r}"
        )
    if backend == "cpu" and device.type != "cpu":
        raise TypeError(f"the cpu backend needs tensors on the CPU, received them on {device}")
    return backend


@cache
def _load(operator: str, function: str, backend: str) -> Callable:
    package = f"{__package__}.{operator}"
    for module in BACKENDS[backend].modules:
        if find_spec(f"{package}.{module}") is not None:
            return getattr(import_module(f"{package}.{module}"), function)
    raise NotImplementedError(f"{operator} has no implementation for backend {backend!r}")


def implementation(
    operator: str, backend: str, device: torch.device, function: str | None = None
) -> Callable:
    """The function that runs an operator on a backend.

    Args:
        operator: folder name under `kernels/`.
        backend: a name of BACKENDS, or "auto".
        device: where the tensors are.
        function: name in the module, where it is not the operator's own.

    Raises:
        ValueError: an unknown backend.
        NotImplementedError: the backend lacks this operator.
    """
    return _load(operator, function or operator, resolve(backend, device))
