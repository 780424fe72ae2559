"""The environment of every test: the one place in the tests that touches it."""

import os
import signal
from pathlib import Path

# Triton reads this when it is first imported; set later, its interpreter fails. Without a GPU the
# kernels run in the interpreter.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

import pytest

from hipcli.engine.threads import prepare_threads, quiet_transport

if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes side by side, one for each core: more threads would only wait for one another.
    os.environ["OMP_NUM_THREADS"] = "1"
prepare_threads(os.environ)
quiet_transport(os.environ)
# A shell makes its background jobs ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where whoever runs the tests keeps caches and models; kept before a test hides it.
OWN_CACHE_DIR = os.environ.get("HIP_CACHE_DIR")
OWN_MODELS_DIR = os.environ.get("HIP_MODELS_DIR")


def real_models_dir() -> Path:
    """Where `hip models pull` put the default model for tests that need a real one."""
    from hipcli.config.options import default_cache_dir

    return Path(OWN_MODELS_DIR or Path(OWN_CACHE_DIR or default_cache_dir()) / "models")


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the cache, the configuration or the terminal of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("HIP_") or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HIP_CACHE_DIR", str(tmp_path / "hip-cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "hip-config"))
