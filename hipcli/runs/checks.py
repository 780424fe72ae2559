"""What can be refused before any document is read: settings at odds with each other or the machine.

Nothing here loads torch, so that a mistake in a command line is told at once.
"""

import importlib.metadata
import sys
from pathlib import Path

from hipcli.config.settings import Settings
from hipcli.engine.errors import UsageError

# What the drivers that PyTorch calls "cuda" leave in /dev: NVIDIA's, on a Jetson and under WSL
# too, and AMD's.
_GPU_FILES = ("nvidiactl", "nvhost-ctrl-gpu", "nvgpu", "dxg", "kfd")
_DEVICES = Path("/dev")


def check_settings(settings: Settings) -> None:
    """Refuses what no run of the engine could do.

    Raises:
        UsageError: an unknown method or setting, a device that is not here, options that exclude
            one another, a password file that cannot be read.
    """
    from hipcli.engine.methods import make_config

    config = settings.engine_config()
    make_config(config.method, config.method_settings)
    settings.generation_config()
    settings.cache_config()
    check_reading(settings)
    check_device(config.device)


def check_reading(settings: Settings) -> None:
    """Refuses options of reading documents that cannot be used as given.

    Raises:
        UsageError: as `check_settings`.
    """
    if settings.values["null"] and settings.values["files_from"] is None:
        raise UsageError(
            "-0 is about the list of --files-from, which is not there", "add --files-from FILE"
        )
    settings.read_options(None)


def check_device(device: str) -> None:
    """Refuses `cuda` where there is no GPU or no PyTorch for one, as far as a glance can tell.

    Raises:
        UsageError: the device is surely not to be had.
    """
    if not device.startswith("cuda"):
        return
    hint = "use --device cpu, or auto; hip doctor shows what is here"
    if sys.platform == "darwin":
        raise UsageError(f"--device {device}: there is no CUDA on a Mac", hint)
    if sys.platform == "linux" and not any((_DEVICES / name).exists() for name in _GPU_FILES):
        raise UsageError(f"--device {device}: this machine has no GPU", hint)
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if version.endswith("+cpu"):
        raise UsageError(
            f"--device {device}: PyTorch {version} was built without GPU support", hint
        )
