"""bf16 or fp32 on this processor: as its instructions tell, measured only where they do not.

The dtype is part of what makes a session the same, so a decision must not change from one run to
the next: what was measured is remembered, and where it cannot be remembered it is fp32.
"""

import contextlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hipcli.engine.sessions.disk import Disk

CACHE_FILE = ".dtypes.json"
# Instructions of x86 that make bf16 products twice as fast as fp32 ones.
_FAST = frozenset({"avx512_bf16", "amx_bf16", "amx_tile"})
# Of others a processor may have the instruction, and PyTorch no product that uses it.
_MAYBE = frozenset({"bf16", "svebf16"})
# bf16 has to be so much faster: the same answers come nearer to the model's in fp32.
_WORTH = 1.25
_TOKENS, _WIDTH, _ROUNDS = 64, 768, 5


@dataclass(frozen=True, slots=True)
class Processor:
    """What a decision rests on.

    Args:
        name: of the processor, as the system has it.
        architecture: as `platform.machine` names it.
        flags: of its instructions, as Linux names them; empty where nothing tells.
    """

    name: str
    architecture: str
    flags: frozenset[str]

    @classmethod
    def here(cls, cpuinfo: Path = Path("/proc/cpuinfo")) -> "Processor":
        """This machine's, as Linux and PyTorch tell of it."""
        rows: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
                key, _, value = line.partition(":")
                rows.setdefault(key.strip(), value.strip())
        flags = {*rows.get("flags", "").split(), *rows.get("Features", "").split()}
        for flag, probe in (
            ("avx512_bf16", "_is_avx512_bf16_supported"),
            ("amx_tile", "_is_amx_tile_supported"),
        ):
            ask = getattr(torch.cpu, probe, None)
            if ask is not None and ask():
                flags.add(flag)
        name = rows.get("model name") or platform.processor()
        return cls(name, platform.machine(), frozenset(flags))


def prefers_bf16(
    processor: Processor, folder: Path | None, measure: Callable[[], float] | None = None
) -> bool:
    """True if models should run in bf16 on a processor.

    Args:
        processor: which.
        folder: where a measurement is remembered; None remembers nothing.
        measure: how many times as fast bf16 is; None is `measured_gain`.
    """
    if processor.flags & _FAST:
        return True
    x86 = processor.architecture.lower() in ("x86_64", "amd64", "i386", "i686")
    if x86 or (processor.flags and not processor.flags & _MAYBE) or folder is None:
        return False
    path = folder / CACHE_FILE
    key = f"{processor.name or processor.architecture}, torch {torch.__version__}"
    known = _read(path)
    if key not in known:
        known[key] = (measure or measured_gain)() >= _WORTH
        try:
            Disk().write(path, json.dumps(known).encode(), sync=False)
        except OSError:
            return False
    return known[key]


@torch.inference_mode()
def measured_gain() -> float:
    """How many times as fast as in fp32 a product of a small model is in bf16; 10 to 30 ms."""
    best = dict.fromkeys((torch.float32, torch.bfloat16), float("inf"))
    pairs = {
        dtype: (torch.ones(_TOKENS, _WIDTH, dtype=dtype), torch.ones(_WIDTH, _WIDTH, dtype=dtype))
        for dtype in best
    }
    for _ in range(_ROUNDS):
        for dtype, (x, weight) in pairs.items():
            began = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.float32] / best[torch.bfloat16]


def _read(path: Path) -> dict[str, bool]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(path.read_bytes())
        if isinstance(known, dict) and all(isinstance(value, bool) for value in known.values()):
            return known
    return {}
