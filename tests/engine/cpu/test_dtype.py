"""Which dtype a processor is fast with, and that the answer stays the same."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.cpu.dtype import CACHE_FILE, Processor, measured_gain, prefers_bf16
from hipcli.engine.models import pick_dtype
from hipcli.engine.sessions.disk import Disk


def never() -> float:
    raise AssertionError("instructions tell; nothing is to be measured")


def processor(flags: str, architecture: str = "x86_64") -> Processor:
    return Processor("some processor", architecture, frozenset(flags.split()))


@pytest.mark.parametrize(
    ("flags", "architecture", "expected"),
    [
        ("fpu avx512f avx512_bf16", "x86_64", True),
        ("fpu amx_tile", "x86_64", True),
        ("amx_bf16", "AMD64", True),
        ("fpu avx512f", "x86_64", False),
        ("", "AMD64", False),
        ("fp asimd", "aarch64", False),
    ],
)
def test_instructions_decide(flags: str, architecture: str, expected: bool, tmp_path: Path) -> None:
    assert prefers_bf16(processor(flags, architecture), tmp_path, never) is expected
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("gain", "expected"), [(2.0, True), (1.1, False), (0.3, False)])
def test_a_measurement_is_made_once(gain: float, expected: bool, tmp_path: Path) -> None:
    arm = processor("asimd bf16", "aarch64")
    assert prefers_bf16(arm, tmp_path, lambda: gain) is expected
    assert prefers_bf16(arm, tmp_path, never) is expected
    # Another processor with the same folder is another matter.
    other = Processor("another", "arm64", frozenset())
    assert prefers_bf16(other, tmp_path, lambda: 2.0)
    assert prefers_bf16(arm, tmp_path, never) is expected


def test_what_cannot_be_remembered_is_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arm = processor("asimd bf16", "aarch64")
    assert not prefers_bf16(arm, None, never)

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Disk, "write", full)
    assert not prefers_bf16(arm, tmp_path, lambda: 9.0)


def test_a_spoilt_memory_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / CACHE_FILE).write_text('{"x": 1}')
    arm = processor("asimd bf16", "aarch64")
    assert prefers_bf16(arm, tmp_path, lambda: 9.0)
    assert prefers_bf16(arm, tmp_path, never)


def test_a_real_product_is_timed() -> None:
    assert 0 < measured_gain() < 100


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor : 0\nmodel name : Some CPU\nflags\t\t: fpu avx512_bf16\n", {"avx512_bf16"}),
        ("model name : Some CPU\nFeatures : asimd bf16\n", {"asimd", "bf16"}),
    ],
)
def test_linux_tells_of_a_processor(
    text: str, flags: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: False, raising=False)
    (tmp_path / "cpuinfo").write_text(text)
    found = Processor.here(tmp_path / "cpuinfo")
    assert found.name == "Some CPU" and flags <= found.flags
    assert Processor.here(tmp_path / "none").flags == frozenset()


def test_pytorch_tells_of_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert "amx_tile" in Processor.here(tmp_path / "none").flags
    assert pick_dtype("auto", "cpu") == "bfloat16"
