"""The managers as Ray actors, whose pages gloo moves."""

import importlib.util
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hipcli.engine.pool.messages import CENTRE, PoolRules
from hipcli.engine.pool.scheduler import SchedulerConfig
from tests.engine.pool.world import MODEL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (hipcli[cluster])"
    ),
]
RULES = PoolRules(heartbeat_s=0.2, reserve_s=10, lease_s=20, silence_s=10)
BLOCKS = 100


def noise() -> list[torch.Tensor]:
    """Pages of two layers, each its own."""
    return [torch.randn((BLOCKS, 2, 2, 4)) for _ in range(2)]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Paths of sockets are short, so this is no folder of pytest's.
    folder = tempfile.mkdtemp(prefix="hip-ray-")
    monkeypatch.setenv("HOME", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", str(root))
    import ray as module

    module.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=100 << 20,
        _temp_dir=folder,
    )
    try:
        yield module
    finally:
        module.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def soon(look: Callable[[], Any]) -> Any:
    """What `look` returns once that is anything."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def test_pages_move_and_a_new_gmanager_knows_where_they_are(ray: Any, tmp_path: Path) -> None:
    from hipcli.engine.pool.actors import Seat, start_centre, start_instance

    names = {"a": 0, "b": 1}
    meeting = f"file://{tmp_path}/meet"
    a, b = (start_instance(ray, Seat(name, BLOCKS, RULES, names, meeting), noise) for name in names)
    assert ray.get(a.admit.remote("long", 95), timeout=60)
    before = ray.get(a.pages.remote(ray.get(a.places.remote("long"))))
    centre = start_centre(ray, RULES, SchedulerConfig(), MODEL)
    # Another request waits at "a" for more room than it has; it stays there, so that one move
    # is enough.
    ray.get(a.admit.remote("short", 5, (20,)))
    moved = soon(
        lambda: [place for place in ray.get(a.places.remote("long")) if place.instance == "b"]
    )
    count = len(moved)
    assert count >= 20
    after = ray.get(b.pages.remote(moved))
    for here, there in zip(before, after, strict=True):
        assert torch.equal(here[:count], there)
    known = soon(lambda: ray.get(centre.placement.remote()).get("long", {}).get("b"))
    ray.kill(centre)
    soon(lambda: _gone(ray))
    again = start_centre(ray, RULES, SchedulerConfig(batch_below=1), MODEL)
    assert soon(lambda: ray.get(again.placement.remote()).get("long", {}).get("b")) >= known


def _gone(ray: Any) -> bool:
    from hipcli.engine.pool.actors import actor_name

    try:
        ray.get_actor(actor_name(CENTRE))
    except ValueError:
        return True
    return False
