"""What of a context lies where, and what is said where it does not fit."""

from pathlib import Path

import pytest
import torch

from hipcli.engine.config import EngineConfig
from hipcli.engine.errors import DoesNotFitError
from hipcli.engine.methods.hip import HipMethod
from hipcli.engine.models import resolve
from hipcli.engine.reading import preflight, tiering
from hipcli.engine.store.layout import KVLayout
from hipcli.engine.store.tiers import TierLimits, device_bytes, plan_tiers
from tests.engine.models import toy_models

GIB = 1 << 30
# Of an 8B model, in fp8.
LAYOUT = KVLayout(32, 8, 128, torch.bfloat16, kv_dtype="fp8_e4m3")
MILLION = 1 << 20


def limits(device: float, host: float = 200, least: int = 300) -> TierLimits:
    return TierLimits(int(device * GIB), None, int(host * GIB), least)


def test_what_fits_has_no_tiers() -> None:
    needed = LAYOUT.num_bytes(MILLION) / GIB
    assert plan_tiers(LAYOUT, MILLION, limits(needed)) is None
    assert plan_tiers(LAYOUT, MILLION, limits(needed * 0.999)) is not None


def test_a_million_tokens_on_six_gib() -> None:
    plan = plan_tiers(LAYOUT, MILLION, limits(6))
    assert plan is not None and not plan.disk_pages
    assert 900 < plan.slots < 1050
    assert device_bytes(LAYOUT, plan.capacity_pages, plan.slots) <= 6 * GIB
    assert device_bytes(LAYOUT, plan.capacity_pages, plan.slots + 1) > 6 * GIB
    assert "GiB on the GPU" in plan.describe(LAYOUT) and "disk" not in plan.describe(LAYOUT)


def test_the_device_keeps_what_memory_has_no_room_for_if_slots_are_left() -> None:
    plan, all_slots = (
        plan_tiers(LAYOUT, MILLION, limits(6, 63)),
        plan_tiers(LAYOUT, MILLION, limits(6)),
    )
    assert plan is not None and all_slots is not None and not plan.disk_pages
    assert plan.device_slabs > 0
    assert plan.slots + plan.device_slabs * plan.slab_pages == all_slots.slots
    assert plan.slots >= 600
    assert "for good" in plan.describe(LAYOUT)


@pytest.mark.parametrize("host", [1, 16, 40.3, 60])
def test_what_memory_does_not_hold_is_on_the_disk(host: float) -> None:
    plan = plan_tiers(LAYOUT, MILLION, limits(6, host))
    assert plan is not None and plan.disk_pages
    first, last = plan.absent
    slab = LAYOUT.num_layers * plan.slab_pages * LAYOUT.page_bytes
    slabs = -(-plan.capacity_pages // plan.slab_pages)
    assert last == slabs - 2 and 0 <= first < last
    held = slabs - (last - first)
    assert held * slab <= host * GIB < (held + 1) * slab
    assert "on the disk" in plan.describe(LAYOUT)


def test_the_least_of_each_is_said_with_its_flag() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        plan_tiers(LAYOUT, MILLION, limits(3))
    assert "raise --gpu-memory" in refused.value.hint
    with pytest.raises(DoesNotFitError) as refused:
        plan_tiers(LAYOUT, MILLION, limits(6, 0.3))
    assert "raise --host-memory" in refused.value.hint


def test_a_limit_on_the_gpu_is_refused_before_the_weights_where_the_least_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve(str(toy_models.llama(tmp_path / "model")), models_dir=tmp_path)
    monkeypatch.setattr(preflight, "pick_device", lambda device: "cuda")
    monkeypatch.setattr(preflight, "pick_dtype", lambda *_: "float32")

    def check(limit: int, method: str = "hip") -> None:
        config = EngineConfig(tmp_path, gpu_memory_bytes=limit, method=method)
        preflight.check_memory(config, folder, MILLION)

    with pytest.raises(DoesNotFitError, match="the least of keys and values of 1,048,576"):
        check(1 << 20)
    with pytest.raises(DoesNotFitError) as refused:
        check(1 << 20, "infllm")
    assert "weights" in refused.value.message and "least" not in refused.value.message
    # Less than all of it, more than the least: summaries, and few pages.
    less = preflight._layout(folder, torch.float32, "auto").num_bytes(MILLION) * 3 // 4
    check(less)
    with pytest.raises(DoesNotFitError):
        check(less, "infllm")


def test_limits_of_user_and_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "free_bytes", lambda device: 40 * GIB)
    method, cuda = HipMethod(), torch.device("cuda")

    def plan(gpu: int, host: int = 64):
        config = EngineConfig(tmp_path, gpu_memory_bytes=gpu, host_memory_bytes=host * GIB)
        return tiering.Tiering(config, method, 16 * GIB, cuda).plan(LAYOUT, MILLION)

    # 39 GiB of 40 where nothing is said, 8 beside the weights where 24 are allowed.
    assert plan(0).slots > 8000
    assert 1000 < plan(24 * GIB).slots < 1700
    assert plan(24 * GIB, 16).disk_pages > 0
    with pytest.raises(DoesNotFitError):
        plan(17 * GIB)
